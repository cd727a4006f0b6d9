"""What every registered format keeps to: registering one adds these tests."""

import gzip
import random
import resource
from contextlib import closing, contextmanager

import numpy as np
import pytest

from app.cli.output import printable
from app.engine.report import analyse
from app.errors import InvalidRequest, PacelineError
from app.trace.readers.importing import MAX_CHUNK_ROWS, ImportOptions
from app.trace.readers.published import trace_files
from app.trace.readers.published import trace_files as files
from app.trace.readers.published.meta import usual_path
from app.trace.readers.registry import FORMATS
from tests.harness.fuzz.damaged_files import DamagedFiles
from tests.harness.samples import SAMPLES
from tests.trace.readers.samples import ALL, expected_ops, imported, ops_of, put

of_operations = pytest.mark.parametrize("name", FORMATS)
of_any = pytest.mark.parametrize("name", ALL)


def refusal(name, paths, **options):
    """The one line that says why the files are not imported."""
    with pytest.raises(PacelineError) as caught:
        imported(ALL[name], paths, **options)
    line = str(caught.value)
    assert "\n" not in line
    assert printable(line) == line
    assert len(line) < 1500
    return line


def taken_or_refused(name, paths, names):
    """A refusal is one line that has one of the names in it."""
    said = None
    try:
        imported(ALL[name], paths)
    except PacelineError as error:
        said = str(error)
    assert said is None or ("\n" not in said and any(each in said for each in names)), said


@pytest.mark.parametrize("name", ["published", "ndtimeline", "kineto"])
def test_sample_is_the_tiny_job(name, tmp_path):
    described, chunks = imported(FORMATS[name], put(FORMATS[name], tmp_path))
    assert (described.parallelism.dp_size, described.parallelism.pp_size) == (2, 2)
    got, want = ops_of(described, chunks), expected_ops()
    assert [each[:5] for each in got] == [each[:5] for each in want]
    # A clock in float64 seconds is good to a quarter of a microsecond.
    np.testing.assert_allclose(
        np.array([each[5:7] for each in got]), np.array([each[5:7] for each in want]), atol=1
    )
    assert [each[7] for each in got] == [each[7] for each in want]


@of_operations
def test_rows_come_step_by_step_with_unique_ids(name, tmp_path):
    described, chunks = imported(FORMATS[name], put(FORMATS[name], tmp_path))
    order = [(int(chunk.step[0]), chunk.rank) for chunk in chunks]
    assert order == sorted(order)
    ids = []
    for chunk in chunks:
        assert 0 < chunk.step.size <= MAX_CHUNK_ROWS
        assert (chunk.step == chunk.step[0]).all()
        place = described.places[chunk.rank]
        assert (place.dp_rank, place.stage) == (chunk.dp_rank, chunk.stage)
        for column in (chunk.optype, chunk.start_ns, chunk.mc, chunk.mb_id, *chunk.more.values()):
            assert column.shape == chunk.step.shape
        assert set(chunk.more) == set(described.more)
        assert (chunk.duration_ns >= 0).all()
        numbers = zip(chunk.optype.tolist(), chunk.seq_id.tolist(), strict=True)
        ids += [(chunk.rank, int(chunk.step[0]), *each) for each in numbers]
    assert len(set(ids)) == len(ids) == described.num_ops
    assert sorted({step for step, _ in order}) == described.steps.tolist()
    if described.has_absolute_times:
        firsts = [
            min(int(chunk.start_ns.min()) for chunk in chunks if chunk.step[0] == step)
            for step in described.steps
        ]
        assert described.origin_ns.tolist() == firsts


@of_operations
def test_imported_operations_can_be_written_read_and_analysed(name, tmp_path):
    opened = FORMATS[name].opened(put(FORMATS[name], tmp_path), ImportOptions())
    out = tmp_path / "trace-written.parquet"
    with closing(opened):
        job = opened.describe().job("nameless")
        with out.open("wb") as file:
            files.write_import(opened, job, file)
        usual_path(out).write_text(files.import_meta_text(opened.describe(), job))
    window = trace_files.read(out)
    _, first = imported(FORMATS[name], put(FORMATS[name], tmp_path))
    assert window.trace.num_ops == sum(chunk.step.size for chunk in first)
    assert analyse(window).slowdown > 0
    # Imported again, it is the same.
    described, again = imported(FORMATS["published"], [out])
    assert window.trace.num_ops == sum(chunk.step.size for chunk in again)
    assert tuple(described.steps.tolist()) == window.steps


@of_any
def test_missing_data_is_counted(name, tmp_path):
    described, _ = imported(ALL[name], put(ALL[name], tmp_path))
    for lack in described.missing:
        assert any(character.isdigit() for character in lack.what), lack
        for text in (lack.what, lack.cost):
            assert text == text.strip() != ""
            assert "\n" not in text
            assert not text.endswith(".")


@of_any
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ""),
        (b"\n\n", ""),
        (b"\x00" * 40, ""),
        (b"\x1f\x8b", "gzip|parquet"),
        (b"\x1f\x8b\x08\x00 no gzip at all", "gzip|parquet"),
        (b"[" * 100_000, ""),
        (b"{" * 100_000, ""),
        (b'{"a":' * 100_000, ""),
        (b'[{"ph":"X"}', ""),
        ("ünïcode 日本\x1b[2J".encode(), ""),
        (random.Random(1).randbytes(3000), ""),
        (b"PAR1" + b"\x00" * 40 + b"PAR1", ""),
    ],
    ids=[
        *("empty", "blank", "zeros", "gz", "nogz", "deep", "maps", "deepmap"),
        *("cut", "text", "noise", "par"),
    ],
)
def test_foreign_files_are_refused_in_one_line(name, content, words, tmp_path):
    paths = put(ALL[name], tmp_path)
    paths[0].write_bytes(content)
    line = refusal(name, paths[:1])
    assert paths[0].name in line
    if words and content[:2] == b"\x1f\x8b":
        assert "gzip" in line or "parquet" in line


@of_any
def test_a_folder_and_a_file_that_is_not_there_are_named(name, tmp_path):
    assert str(tmp_path) in refusal(name, [tmp_path])
    missing = tmp_path / "none.json"
    assert "none.json" in refusal(name, [missing])


@of_any
def test_a_file_that_is_cut_off_anywhere_is_taken_or_refused_in_one_line(name, tmp_path):
    paths = put(ALL[name], tmp_path)
    whole = paths[-1].read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 25)):
        paths[-1].write_bytes(whole[:length])
        taken_or_refused(name, paths, [paths[-1].name])


@of_any
def test_a_packed_file_is_the_same_and_refused_where_it_is_cut_off(name, tmp_path):
    paths = put(ALL[name], tmp_path)
    if paths[0].read_bytes()[:4] == b"PAR1":
        pytest.skip("parquet is packed by itself")
    described, rows = imported(ALL[name], paths)
    for path in paths:
        path.write_bytes(gzip.compress(path.read_bytes()))
    again, rows_again = imported(ALL[name], paths)
    assert str(again) == str(described)
    assert len(rows_again) == len(rows)
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[:-20])
    line = refusal(name, paths)
    assert paths[0].name in line
    assert "gzip" in line


@of_any
def test_a_byte_order_mark_is_no_part_of_a_text(name, tmp_path):
    paths = put(ALL[name], tmp_path)
    if paths[0].read_bytes()[:4] == b"PAR1":
        pytest.skip("parquet is no text")
    described, _ = imported(ALL[name], paths)
    for path in paths:
        is_text = path.suffix != ".pb"
        path.write_bytes(b"\xef\xbb\xbf" * is_text + path.read_bytes())
    assert str(imported(ALL[name], paths)[0]) == str(described)


@of_operations
def test_the_same_rank_twice_is_refused(name, tmp_path):
    paths = put(FORMATS[name], tmp_path)
    again = tmp_path / f"again-{paths[0].name}"
    again.write_bytes(paths[0].read_bytes())
    if name == "otlp":  # its spans have ids of their own, and exporters send them again
        once, twice = (imported(FORMATS[name], some)[1] for some in (paths, [*paths, again]))
        assert [chunk.start_ns.tolist() for chunk in twice] == [
            chunk.start_ns.tolist() for chunk in once
        ]
        return
    line = refusal(name, [*paths, again])
    assert paths[0].name in line
    assert "once" in line or "one file" in line or "twice" in line


@of_operations
def test_scratch_files_are_freed_and_a_full_disk_is_reported(name, tmp_path):
    paths = put(FORMATS[name], tmp_path)
    spool = tmp_path / "spool"
    spool.mkdir()
    imported(FORMATS[name], paths, spool_dir=spool)
    assert not list(spool.iterdir())
    with a_full_disk(), pytest.raises(InvalidRequest) as caught:
        imported(FORMATS[name], paths, spool_dir=spool)
    assert f"{spool}: cannot keep what is read there" in str(caught.value)
    assert not list(spool.iterdir())
    with pytest.raises(InvalidRequest, match="cannot keep what is read there"):
        imported(FORMATS[name], paths, spool_dir=tmp_path / "none")


@contextmanager
def a_full_disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@of_operations
def test_sizes_that_do_not_fit_are_refused(name, tmp_path):
    paths = put(FORMATS[name], tmp_path)
    line = refusal(name, paths, sizes={"dp_size": 1, "pp_size": 1})
    assert "size" in line


@of_any
def test_damaged_files_are_taken_or_refused_in_one_line(name, tmp_path):
    damaged = DamagedFiles(SAMPLES[name](), seed=5)
    paths = put(ALL[name], tmp_path)
    for number in range(40):
        changed, content = damaged[number]
        (tmp_path / changed).write_bytes(content)
        taken_or_refused(name, paths, damaged.files)
        (tmp_path / changed).write_bytes(damaged.files[changed])
