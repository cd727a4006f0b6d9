"""ndtimeline's records and Chrome file, worked out by hand."""

import json

import pytest

from app.errors import InvalidTrace
from app.trace.readers.registry import FORMATS
from tests.harness.samples.job import BEGAN_NS, sample_ops
from tests.trace.readers.samples import expected_ops, imported, ops_of

NDTIMELINE = FORMATS["ndtimeline"]
BEGAN_S = BEGAN_NS // 10**9
RECORD = {
    "ts": BEGAN_S,
    "rank": 0,
    "metric": "forward-compute",
    "iteration": 0,
    "step": 4,
    "value": 0.5,
    "start_ts": [BEGAN_S, BEGAN_S + 1],
    "duration": [0.5, 0.25],
    "model_chunk": 0,
    "stage": 0,
    "dp_rank": 0,
    "tp_rank": 0,
    "ip": "10.0.0.1",
    "role": "trainer",
    "trial": "llm",
    "run_id": 9,
}


def of(tmp_path, *changes, text=None, **options):
    """The import of records with these changes each."""
    lines = "".join(json.dumps(RECORD | each) + "\n" for each in changes)
    path = tmp_path / "records.jsonl"
    path.write_text(lines if text is None else text)
    return imported(NDTIMELINE, [path], **options)


def refused(tmp_path, *changes, **options):
    with pytest.raises(InvalidTrace) as caught:
        of(tmp_path, *changes, **options)
    return str(caught.value)


def optypes(described, chunks):
    return [(each[4], each[5], each[6], each[7]) for each in ops_of(described, chunks)]


def lack(described, what):
    return next(each for each in described.missing if each.what.startswith(what))


def test_a_record_is_as_many_operations_as_it_has_starts(tmp_path):
    described, chunks = of(tmp_path, {})
    assert optypes(described, chunks) == [
        ("forward-compute", 0, 500_000, 0),
        ("forward-compute", 1_000_000, 250_000, 1),
    ]
    assert chunks[0].mb_id.tolist() == [0, 1]
    assert chunks[0].start_ns[0] == BEGAN_NS
    assert chunks[0].host == "10.0.0.1"


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("unshard-all-gather", ["params-all-gather"]),
        ("grad-reduce-scatter", ["grads-reduce-scatter"]),
        ("grad-all-reduce", ["separate-grads-all-reduce"]),
        ("params-all-gather-nonoverlapping", ["params-all-gather"]),
        ("forward-send-backward-recv", ["backward-recv", "forward-send"]),
        ("backward-send-forward-recv", ["backward-send", "forward-recv"]),
    ],
)
def test_its_own_names_are_known(metric, expected, tmp_path):
    described, chunks = of(tmp_path, {"metric": metric, "start_ts": [BEGAN_S], "duration": [0.5]})
    assert [each[0] for each in optypes(described, chunks)] == expected
    if len(expected) > 1:
        assert lack(described, "transfers: 1 call").cost.startswith("each is taken as both")


def test_unknown_names_are_counted_and_can_be_mapped(tmp_path):
    import re

    changes: list[dict] = [{}, {"metric": "cross-mesh-recv"}, {"metric": "tp-allreduce"}]
    described, chunks = of(tmp_path, *changes)
    assert len(ops_of(described, chunks)) == 2
    assert "2 operations have a name that is none, 2 of 'cross-mesh-recv'" in (
        lack(described, "op types").what
    )
    assert "2 operations ran inside others" in lack(described, "parts").what
    patterns = ((re.compile("^cross-mesh-recv$"), "forward-recv"),)
    described, chunks = of(tmp_path, *changes, patterns=patterns)
    assert len(ops_of(described, chunks)) == 4


def test_the_chrome_file_gives_the_same(tmp_path):
    lanes = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "dp rank[0]"}}]
    events = lanes + [
        {
            "ph": "X",
            "name": op.optype,
            "cat": op.optype,
            "pid": op.dp_rank,
            "tid": op.rank * 10,
            "ts": op.start_ns / 1000,
            "dur": op.duration_ns / 1000,
            "args": {"rank": op.rank, "step": op.step, "tp": 0, "pp": op.stage},
        }
        for op in sample_ops()
    ]
    path = tmp_path / "trace_step7_8"
    for content in (events, {"traceEvents": events, "displayTimeUnit": "ms"}):
        path.write_text(json.dumps(content))
        described, chunks = imported(NDTIMELINE, [path])
        assert [each[:5] for each in ops_of(described, chunks)] == [
            each[:5] for each in expected_ops()
        ]


def test_of_tensor_parallel_peers_the_first_is_kept_and_the_others_counted(tmp_path):
    peer = {"rank": 1, "tp_rank": 1, "ip": "10.0.0.2"}
    described, chunks = of(tmp_path, {}, peer)
    assert [chunk.rank for chunk in chunks] == [0]
    assert "1 ranks do the same work" in lack(described, "peers").what
    described, chunks = of(tmp_path, peer)  # the only one there
    assert [chunk.rank for chunk in chunks] == [1]


def test_given_chunks_number_their_micro_batches_separately(tmp_path):
    described, chunks = of(tmp_path, {}, {"model_chunk": 1, "start_ts": [BEGAN_S + 2, BEGAN_S + 3]})
    assert described.parallelism.vpp_size == 2
    assert chunks[0].mc.tolist() == [0, 0, 1, 1]
    assert chunks[0].mb_id.tolist() == [0, 1, 0, 1]
    assert chunks[0].seq_id.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("is_seen", [True, False])
def test_an_interleaved_schedule_without_chunks_is_not_guessed(is_seen, tmp_path):
    # Only there does the first stage receive activations; or else the caller says so.
    if is_seen:
        described, chunks = of(tmp_path, {}, {"metric": "forward-recv"})
    else:
        described, chunks = of(tmp_path, {}, sizes={"vpp_size": 2})
    assert set(chunks[0].mb_id.tolist()) == {-1}
    assert set(chunks[0].mc.tolist()) == {-1}
    said = lack(described, "micro-batch ids: 2 of 2")
    assert "not told apart" in said.what
    assert "not guessed" in said.cost


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{}, {"run_id": 10}], "element 2: run_id is '10' here and '9' before: give the files of"),
        ([{}, {"step": 5, "trial": "b"}], "element 2: trial is 'b' here and 'llm' before"),
        ([{}, {"dp_rank": 1}], "element 2: rank 0 is dp_rank 1, stage 0 here and dp_rank 0"),
        ([{}, {}], "rank 0, step 4: 2 operations are there twice, forward-compute first: give"),
        ([{"rank": None}], "element 1: rank is missing"),
        ([{"start_ts": [1.0]}], "start_ts has 1 values and duration 2: want as many of each"),
        ([{"duration": [0.5, -1]}], "element 1: duration_ns is -1000000000: want 0 to"),
        ([{"duration": [0.5, 1e300]}], "element 1: a time is 1e+300: that is no time"),
        ([{"step": -1}], "element 1: step is -1: want 0 to"),
        ([{"rank": 2**40}], "element 1: rank is 1099511627776: want 0 to"),
        ([{"stage": "x"}], r"element 1: Expected `int | null`, got `str` - at `\$.stage`"),
        ([{"metric": None}], "element 1: has neither metric nor ph"),
        ([{"metric": "unheard-of"}], "no operation of a training step is there"),
    ],
)
def test_errors_name_file_and_record(changes, words, tmp_path):
    line = refused(tmp_path, *changes)
    assert line.startswith("records.jsonl: ")
    import re

    assert words in line or re.search(words, line), line


def test_losses_of_the_timeline_are_reported_and_hosts_are_bounded(tmp_path):
    described, chunks = of(tmp_path, {"ip": "h" * 10_000}, {"rank": 1, "dp_rank": 1})
    told = lack(described, "first step: the first NCCL operation of each stream of 2 ranks")
    assert "leave the first step out" in told.cost
    assert [chunk.host for chunk in chunks] == ["h" * 255, "10.0.0.1"]
