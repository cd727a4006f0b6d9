"""collectives-NAME.parquet beside a trace: what is written is read, and what is wrong is named."""

import math
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.errors import InvalidTrace
from app.synth.job import SimulatedJob
from app.trace.collectives import Collectives, RankGroup, RankPlace
from app.trace.job import Parallelism
from app.trace.readers.published import collective_files, trace_files

MADE = SimulatedJob(Parallelism(dp_size=2, pp_size=1, tp_size=2), 2, seed=3)


def ints(*values):
    return np.array(values, np.int64)


TABLE = Collectives(
    groups=(
        RankGroup("tp (ranks 0, 1)", "tp", (0, 1)),
        RankGroup("tp (ranks 2, 3)", "tp", (2, 3)),
        RankGroup("pair", "pp", (3, 0)),
    ),
    kinds=("all-reduce", "recv"),
    group=ints(0, 0, 1, 2),
    kind=ints(0, 0, 0, 1),
    step=ints(1, 1, 1, 2),
    sequence=ints(0, 0, 4, 0),
    rank=ints(0, 1, 2, 0),
    start_s=np.array([0.5, 0.25, math.nan, 0.125]),
    stay_s=np.array([0.001, 0.002, 0.003, 0.004]),
    num_bytes=ints(64, 64, -1, 0),
    places={
        0: RankPlace(0, 0, 0, "n0", 0),
        1: RankPlace(1, 0, 0, "n0", 1),
        2: RankPlace(2, 1, None, None, None),
    },
)


def written(tmp_path, table=TABLE):
    path = tmp_path / "trace-made.parquet"
    trace_files.write(MADE.make([1, 2]), MADE.job, path, collectives=table)
    return path


def same(first, second):
    assert (first.groups, first.kinds, first.places) == (second.groups, second.kinds, second.places)
    for each in fields(Collectives):
        value = getattr(first, each.name)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, getattr(second, each.name))


def test_what_is_written_beside_a_trace_is_read_with_it(tmp_path):
    path = written(tmp_path)
    window = trace_files.read(path)
    assert window.steps == (1, 2)
    same(window.collectives, TABLE)
    assert collective_files.beside(path, [3]) is None
    only = collective_files.beside(path, [2])
    assert only is not None
    assert (only.groups, only.rank.tolist()) == ((TABLE.groups[2],), [0])


def test_a_trace_that_is_written_over_another_loses_what_was_beside_that(tmp_path):
    path = written(tmp_path)
    assert collective_files.usual_path(path).is_file()
    written(tmp_path, None)
    assert trace_files.read(path).collectives is None
    assert not collective_files.usual_path(path).exists()


def test_missing_optional_columns_are_unknown(tmp_path):
    path = written(tmp_path)
    beside = collective_files.usual_path(path)
    kept = ["step", "group", "group_axis", "group_ranks", "kind", "sequence", "rank", "duration"]
    pq.write_table(pq.read_table(beside).select(kept), beside)
    found = trace_files.read(path).collectives
    assert found is not None
    assert np.isnan(found.start_s).all()
    assert found.num_bytes.tolist() == [-1] * 4
    assert found.place(1) == RankPlace(1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: table.drop_columns(["kind"]), "column kind is missing"),
        (lambda table: changed(table, "duration", [0.1, -1.0, 0.1, 0.1]), "that no duration is"),
        (lambda table: changed(table, "duration", [0.1, math.nan, 0.1, 0.1]), "no duration is"),
        (lambda table: changed(table, "step", [1, None, 1, 2]), "column step has nulls"),
        (lambda table: changed(table, "group_axis", ["x"] * 4), "group_axis 'x' is none"),
        (lambda table: changed(table, "rank", ["a"] * 4), "cannot be read"),
        (lambda table: changed(table, "group_ranks", [1, 2, 3, 4]), "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path, change, reason):
    path = written(tmp_path)
    beside = collective_files.usual_path(path)
    pq.write_table(change(pq.read_table(beside)), beside)
    with pytest.raises(InvalidTrace, match=f"collectives-made.parquet: .*{reason}"):
        trace_files.read(path)


def changed(table, name, values):
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = written(tmp_path)
    collective_files.usual_path(path).write_bytes(b"PAR1 no parquet")
    with pytest.raises(InvalidTrace, match=r"collectives-made.parquet: cannot be read"):
        trace_files.read(path)
