"""The result of a window as flat tables, in memory and as CSV or Parquet files.

Unknown values are empty in CSV and null in Parquet.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from typing import Any, BinaryIO, NamedTuple

from app.cli.output import safe_cell
from app.result.finding import Culprit
from app.result.window_result import BySteps, WindowResult

Row = tuple[Any, ...]


class ResultTable(NamedTuple):
    """A table's columns with types, and its rows without the key columns."""

    columns: Mapping[str, type]
    rows: Callable[[WindowResult], Iterator[Row]]


KEY_COLUMNS = {"job": str, "window": str}


_SIZES = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "world_size")
_FIGURES = (
    *("slowdown", "gpu_time_wasted", "gpu_hours_lost", "launch_slowdown"),
    *("m_w", "m_w_exact", "m_s"),
)
_TIMES = ("recorded", "simulated", "ideal")


def _summary(result: WindowResult) -> Iterator[Row]:
    window, steps = result.window, result.steps
    yield (
        window.state,
        window.revision,
        *((steps[0], steps[-1]) if steps else (None, None)),
        len(steps),
        len(result.skipped_steps),
        *(getattr(result.job, name) for name in _SIZES),
        *(mean_known(getattr(result.step_time_s, name)) for name in _TIMES),
        *(getattr(result, name) for name in _FIGURES),
        result.fidelity.discrepancy,
        result.fidelity.verdict,
    )


def mean_known(values: BySteps) -> float | None:
    """The mean of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _steps(result: WindowResult) -> Iterator[Row]:
    columns = (*(getattr(result.step_time_s, name) for name in _TIMES), result.step_slowdown)
    discrepancy = result.fidelity.step_discrepancy or [None] * len(result.steps)
    yield from zip(result.steps, *columns, discrepancy, strict=True)


def _workers(result: WindowResult) -> Iterator[Row]:
    delay, slowdown = result.launch_delay, result.worker_slowdown
    grids = (slowdown, result.worker_slowdown_estimate, delay.by_worker, delay.others_waited)
    for dp_rank, stage in _workers_of(result) if slowdown else ():
        yield dp_rank, stage, *(grid and grid[dp_rank][stage] for grid in grids)


def _workers_of(result: WindowResult) -> Iterator[tuple[int, int]]:
    return product(range(result.job.dp_size), range(result.job.pp_size))


def _stages(result: WindowResult) -> Iterator[Row]:
    compute = result.stage_compute_s
    columns = (result.stage_share, compute and compute.forward, compute and compute.backward)
    for stage, slowdown in enumerate(result.stage_slowdown or ()):
        yield stage, slowdown, *(values and values[stage] for values in columns)


def _optypes(result: WindowResult) -> Iterator[Row]:
    slowdown, times = result.optype_slowdown, result.optype_time_s
    delay = result.launch_delay.by_optype
    for name in sorted({*slowdown, *times, *delay}):
        parts = (getattr(times.get(name), part, None) for part in ("recorded", "transfer", "wait"))
        yield name, slowdown.get(name), *parts, delay.get(name)


def _worker_steps(result: WindowResult) -> Iterator[Row]:
    by_step = result.per_step.worker_slowdown if result.per_step else ()
    for step, grid in zip(result.steps, by_step, strict=False):
        for dp_rank, stage in _workers_of(result):
            yield step, dp_rank, stage, grid[dp_rank][stage]


_FINDING_COLUMNS = (
    *("cause", "score", "confidence", "cost"),
    *("onset_step", "end_step", "persistence", "sentence"),
)


def _findings(result: WindowResult) -> Iterator[Row]:
    """One row per culprit, or one for a cause without culprits."""
    for place, finding in enumerate(result.findings or ()):
        columns = [getattr(finding, name) for name in _FINDING_COLUMNS]
        for culprit in finding.culprits or (Culprit(),):
            yield place, *columns, culprit.dp_rank, culprit.stage, culprit.host


def _columns(kind: type, *names: str) -> dict[str, type]:
    """Columns of one type."""
    return dict.fromkeys(names, kind)


TABLES: dict[str, ResultTable] = {
    "summary": ResultTable(
        _columns(str, "state")
        | _columns(int, "revision", "first_step", "last_step", "num_steps", "num_skipped", *_SIZES)
        | _columns(float, *(f"{name}_step_s" for name in _TIMES), *_FIGURES, "discrepancy")
        | _columns(str, "verdict"),
        _summary,
    ),
    "steps": ResultTable(
        _columns(int, "step")
        | _columns(float, *(f"{name}_s" for name in _TIMES), "slowdown", "discrepancy"),
        _steps,
    ),
    "workers": ResultTable(
        _columns(int, "dp_rank", "stage")
        | _columns(float, "slowdown", "slowdown_estimate", "launch_delay_s", "others_waited_s"),
        _workers,
    ),
    "dp-ranks": ResultTable(
        _columns(int, "dp_rank") | _columns(float, "slowdown"),
        lambda result: enumerate(result.dp_rank_slowdown or ()),
    ),
    "stages": ResultTable(
        _columns(int, "stage") | _columns(float, "slowdown", "share", "forward_s", "backward_s"),
        _stages,
    ),
    "op-types": ResultTable(
        _columns(str, "op_type")
        | _columns(float, "slowdown", "recorded_s", "transfer_s", "wait_s", "launch_delay_s"),
        _optypes,
    ),
    "worker-steps": ResultTable(
        _columns(int, "step", "dp_rank", "stage") | _columns(float, "slowdown"), _worker_steps
    ),
    "findings": ResultTable(
        _columns(int, "place")
        | _columns(str, "cause")
        | _columns(float, "score", "confidence", "cost")
        | _columns(int, "onset_step", "end_step")
        | _columns(str, "persistence", "sentence")
        | _columns(int, "dp_rank", "stage")
        | _columns(str, "host"),
        _findings,
    ),
    "skipped-steps": ResultTable(
        _columns(int, "step") | _columns(str, "reason"),
        lambda result: ((skipped.step, skipped.reason) for skipped in result.skipped_steps),
    ),
}


Write = Callable[[str, WindowResult, BinaryIO], None]
_ROWS_PER_CHUNK = 10_000


def write_csv(name: str, result: WindowResult, file: BinaryIO) -> None:
    """Write a table with a header line."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*KEY_COLUMNS, *TABLES[name].columns])
    lines.writerows(map(safe_cell, row) for row in _rows(name, result))
    text.detach()


def write_parquet(name: str, result: WindowResult, file: BinaryIO) -> None:
    """Write a table with typed columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    columns = {**KEY_COLUMNS, **TABLES[name].columns}
    schema = pa.schema([(column, kinds[kind]) for column, kind in columns.items()])
    with pq.ParquetWriter(file, schema) as writer:
        remaining = _rows(name, result)
        while rows := list(islice(remaining, _ROWS_PER_CHUNK)):
            made = [
                pa.array(list(values), field.type)
                for values, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            writer.write_table(pa.table(made, schema=schema))


WRITERS: dict[str, Write] = {"csv": write_csv, "parquet": write_parquet}


def count_rows(name: str, result: WindowResult) -> int:
    """Rows of a table, without its header."""
    return sum(1 for _ in TABLES[name].rows(result))


def _rows(name: str, result: WindowResult) -> Iterator[Row]:
    key = (result.job.name, result.window.id)
    return ((*key, *row) for row in TABLES[name].rows(result))
