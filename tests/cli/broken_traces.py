"""A small valid trace on disk, and the faults that can be injected into it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Files:
    """The files of a trace, and the random generator that picks what a fault changes."""

    trace: Path
    sizes: Parallelism
    rng: random.Random

    @classmethod
    def of(
        cls, simulated: SimulatedJob, num_steps: int, folder: Path, rng: random.Random
    ) -> "Files":
        """Write a valid trace."""
        path = folder / "trace-odd.parquet"
        trace_files.write(simulated.make(range(num_steps)), simulated.job, path)
        return cls(path, simulated.parallelism, rng)

    @property
    def meta(self) -> Path:
        return self.trace.with_name("meta-odd.yaml")

    @cached_property
    def columns(self) -> Columns:
        """The columns of the trace; change them, then call `write_rows`."""
        return {name: list(v) for name, v in pq.read_table(self.trace).to_pydict().items()}

    def write_rows(self, columns: Columns | pa.Table) -> None:
        """Replace the rows of the trace."""
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, self.trace)

    def filter_rows(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the rows for which the predicate is false."""
        table = pa.table(self.columns)
        self.write_rows(table.filter([is_kept(row) for row in table.to_pylist()]))

    def random_row(self) -> int:
        return self.rng.randrange(len(self.columns["step"]))

    def set_one(self, name: str, value: Any) -> str:
        """Change the value of a random row; returns the start of the expected error."""
        row = self.random_row()
        self.columns[name][row] = value
        self.write_rows(self.columns)
        return rf"column {name}, rows {row} "

    def change_meta(self, **sizes: Any) -> None:
        content = yaml.safe_load(self.meta.read_text()) | sizes
        given = {name: size for name, size in content.items() if size is not None}
        self.meta.write_text(yaml.safe_dump(given))

    def random_column(self) -> str:
        return self.rng.choice([name for name in self.columns if name != "gmc"])


# Each breaks the files and returns a regular expression for the error message.
Fault = Callable[[Files], str]
FAULTS: dict[str, Fault] = {}


def fault(spoil: Fault) -> Fault:
    FAULTS[spoil.__name__] = spoil
    return spoil


@fault
def a_column_is_repeated(files: Files) -> str:
    name = files.random_column()
    table = pa.table(files.columns)
    files.write_rows(table.append_column(name, table.column(name)))
    return rf"column {name} is there 2 times; keep one"


@fault
def a_column_is_of_another_type(files: Files) -> str:
    name = files.random_column()
    files.columns[name] = [[1]] * len(files.columns[name])
    files.write_rows(files.columns)
    return rf"column {name} is list.*; want "


@fault
def a_column_has_no_value(files: Files) -> str:
    name = files.random_column()
    files.columns[name] = [None] * len(files.columns[name])
    files.write_rows(files.columns)
    return rf"column {name}, rows 0, 1, 2 and [\d,]+ more are null; give every row a value"


@fault
def a_time_is_huge(files: Files) -> str:
    name = files.rng.choice(["start_ts", "duration"])
    value = files.rng.choice([1e11, 1.7e18, 1e300, 1.79e308])
    return files.set_one(name, value) + "are beyond .* seconds; give seconds"


@fault
def all_times_are_huge(files: Files) -> str:
    # Each is finite, their sum is not.
    files.columns["start_ts"] = [1.7e308] * len(files.columns["start_ts"])
    files.write_rows(files.columns)
    return r"column start_ts, rows 0, 1, 2 and [\d,]+ more are beyond .* seconds; give seconds"


@fault
def a_number_is_negative(files: Files) -> str:
    name = files.rng.choice(["seq_id", "dp_rank", "stage", "rank", "step"])
    return files.set_one(name, -1) + "are below 0; number from 0 up"


@fault
def two_traces_are_mixed(files: Files) -> str:
    other = SimulatedJob(files.sizes, 1, seed=9)
    trace_files.write(other.make([0]), other.job, files.trace.with_name("trace-other.parquet"))
    added = pq.read_table(files.trace.with_name("trace-other.parquet")).to_pydict()
    files.write_rows({name: [*values, *added[name]] for name, values in files.columns.items()})
    return r"column seq_id, row \d+ repeats row \d+ .*; keep one of each"


@fault
def a_stage_is_missing(files: Files) -> str:
    # One of several dp ranks would be imputed from the others.
    files.filter_rows(lambda row: row["stage"] != 0)
    if files.sizes.pp_size == 1:
        return "has no rows; record at least one step"
    return r"stage 0\) .*reported nothing.*; record all workers|correct the"


@fault
def a_replica_is_missing(files: Files) -> str:
    last = files.sizes.dp_size - 1
    files.filter_rows(lambda row: row["dp_rank"] != last)
    if last == 0:
        return "has no rows; record at least one step"
    if last > 1:
        return ""  # imputed from the others
    return (
        rf"dp_size is {last + 1}, but the trace's highest dp_rank is {last - 1}; correct the meta"
    )


@fault
def a_seq_id_is_skipped(files: Files) -> str:
    files.columns["seq_id"] = [
        number + (name == "forward-compute")
        for number, name in zip(files.columns["seq_id"], files.columns["optype"], strict=True)
    ]
    files.write_rows(files.columns)
    return r"lacks forward-compute 0.*; record all workers of a step"


@fault
def sends_have_no_receives(files: Files) -> str:
    files.filter_rows(lambda row: row["optype"] != "forward-recv")
    return "forward-send.*; record" if files.sizes.pp_size > 1 else ""


@fault
def operations_wait_in_a_cycle(files: Files) -> str:
    if files.sizes.pp_size == 1:
        return ""
    rows = pa.table(files.columns).to_pylist()
    ends_s = max(row["start_ts"] + row["duration"] for row in rows)
    for row in rows:
        # The first stage computes backward before it has computed forward.
        if row["stage"] == 0 and row["optype"] == "forward-compute":
            row["start_ts"] += ends_s
    files.write_rows(pa.Table.from_pylist(rows))
    return r"wait for each other in a circle, .*(forward|backward)-.*; record"


@fault
def a_type_name_has_control_characters(files: Files) -> str:
    name = files.rng.choice(["\x1b]0;owned\x07", "a\nb", "a\r\n", "\x9b31m", "\u202eevil"])
    return files.set_one("optype", name) + r"are of an unknown type \('.*\\(x|n|r|u).*'\); use one"


@fault
def types_are_numbers(files: Files) -> str:
    files.columns["optype"] = [3] * len(files.columns["optype"])
    files.write_rows(files.columns)
    return "column optype is int64; want names"


@fault
def all_durations_are_zero(files: Files) -> str:
    files.columns["duration"] = [0.0] * len(files.columns["duration"])
    files.write_rows(files.columns)
    return "takes no time.*; record"


@fault
def all_times_are_zero(files: Files) -> str:
    for name in ("start_ts", "duration"):
        files.columns[name] = [0.0] * len(files.columns[name])
    files.write_rows(files.columns)
    return "took no time; record"


@fault
def the_file_is_garbage(files: Files) -> str:
    around = files.rng.choice([b"", b"PAR1"])
    files.trace.write_bytes(around + files.rng.randbytes(200) + around)
    return "copy or record it again" if around else "`paceline analyze` takes files of"


@fault
def the_file_is_a_folder(files: Files) -> str:
    files.trace.unlink()
    files.trace.mkdir()
    return "cannot be read.*; name a parquet file"


@fault
def the_meta_file_is_not_yaml(files: Files) -> str:
    content = files.rng.choice(
        [
            b"dp_size: [2",
            b"\xff\xfe\x00",
            b"\x00",
            b"a: 'b\nc",
            b"[" * 99999,  # deep enough to crash a recursive loader
            b"- " * 99999 + b"1",
            b"x: !!bool z",
            b"x: !!python/object:os.system 3",
            b"dp_size: " + b"9" * 5000,
            b"? [1, 2]\n: 3",
        ]
    )
    files.meta.write_bytes(content)
    return "meta-odd.yaml: (is no YAML; write|want) lines like 'dp_size: 4'"


@fault
def a_size_is_invalid(files: Files) -> str:
    size = files.rng.choice(["two", 0, -3, 2.5, True, [2], {"a": 1}, "\x1b[2J"])
    name = files.rng.choice(["dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size"])
    files.change_meta(**{name: size})
    return rf"meta-odd.yaml: {name} is .*; give a whole number, 1 or more"
