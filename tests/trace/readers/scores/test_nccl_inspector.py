"""The NCCL Inspector: who comes late to what all ranks do together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidTrace
from app.trace.readers.input_file import BodyText
from app.trace.readers.registry import SCORE_READERS
from app.trace.readers.scores import nccl_inspector
from app.trace.readers.scores.nccl_inspector import LongestTimes
from app.trace.readers.scores.nccl_records import CollectiveRecord, Process, RecordOrigin
from tests.trace.readers.scores.score_texts import by, collective, header, read_nccl


def test_rank_with_the_shortest_time_arrived_last():
    report = read_nccl(
        [header(0), collective(1, 900), collective(2, 950)],
        [header(1), collective(1, 100), collective(2, 50)],
    )
    assert by(report, "late-by") == {0: 0.0, 1: pytest.approx(0.85)}
    assert by(report, "time-inside") == {0: pytest.approx(0.925), 1: pytest.approx(0.075)}
    worst = report.scores[0]
    assert (worst.rank, worst.metric, worst.section) == (1, "late-by", "AllReduce, 2 ranks, 0x7f")
    assert (worst.slowdown, worst.node, worst.at_s, worst.num) == (None, "host-a", 5.0, 2)


def test_sequence_numbers_are_of_each_kind_apart():
    """An AllGather with number 1 is not the AllReduce with number 1."""
    report = read_nccl(
        [header(0), collective(1, 900), collective(1, 10, "AllGather")],
        [header(1), collective(1, 800), collective(1, 60, "AllGather")],
    )
    late = {
        (each.section.partition(",")[0], each.rank): each.mean
        for each in report.scores
        if each.metric == "late-by"
    }
    assert late == {
        ("AllReduce", 0): 0.0,
        ("AllReduce", 1): pytest.approx(0.1),
        ("AllGather", 0): pytest.approx(0.05),
        ("AllGather", 1): 0.0,
    }


def test_both_header_styles_give_the_same_records():
    repeated = [
        [header(rank) | collective(1, time_us), header(rank) | collective(2, time_us)]
        for rank, time_us in ((0, 300), (1, 100))
    ]
    once = [
        [header(rank) | {"dump_stats": {"coll_records": 2}}, *lines]
        for rank, lines in enumerate(
            [[collective(1, 300), collective(2, 300)], [collective(1, 100), collective(2, 100)]]
        )
    ]
    assert read_nccl(*repeated) == read_nccl(*once)


def test_one_file_may_have_several_communicators():
    """A process is in two of them; its rank is that in the larger one."""
    files = []
    for rank in range(4):
        world = [header(rank, num_ranks=4), collective(1, 100 + rank)]
        pair = header(rank % 2, num_ranks=2, comm=f"0x{rank // 2}", pid=rank)
        files.append([*world, pair, collective(1, 50 * (rank % 2 + 1))])
    report = read_nccl(*files)
    late = {
        (each.section.rpartition(" ")[2], each.rank): round(each.mean, 6)
        for each in report.scores
        if each.metric == "late-by"
    }
    assert {rank: each for (comm, rank), each in late.items() if comm == "0x7f"} == {
        **{0: 0.003, 1: 0.002, 2: 0.001, 3: 0.0}
    }
    assert (late["0x0", 0], late["0x1", 2], late["0x1", 3]) == (0.05, 0.05, 0.0)


def test_without_a_communicator_of_all_processes_none_has_a_rank():
    report = read_nccl(
        *([header(at % 2, comm=f"0x{at // 2}", pid=at), collective(1, 10)] for at in range(4))
    )
    assert {each.rank for each in report.scores} == {None}
    assert "host-a, process 3" in {each.node for each in report.scores}
    assert "the global ranks of 4 processes" in [each.what for each in report.missing]


def test_lateness_needs_every_rank_of_a_collective():
    report = read_nccl(
        [header(0), collective(1, 900), collective(2, 900)], [header(1), collective(2, 1)]
    )
    late = {each.rank: each.num for each in report.scores if each.metric == "late-by"}
    assert late == {0: 1, 1: 1}
    [lack] = [each for each in report.missing if "other ranks" in each.what]
    assert lack.what == "the other ranks of 1 of 3 records of collectives"


def test_a_communicator_whose_name_is_used_again_is_not_joined():
    first = [[header(rank), collective(1, 100 * rank)] for rank in range(2)]
    again = [[header(rank, pid=9 + rank), collective(1, 7)] for rank in range(2)]
    report = read_nccl(*first, *again)
    assert by(report, "late-by") == {}


def test_dropped_inspector_records_are_reported():
    stats = {"dump_stats": {"coll_dropped_since_last_dump": 512}}
    report = read_nccl([header(0, num_ranks=1) | stats, collective(1, 5), {"p2p_perf": {"a": 1}}])
    told = [each.what for each in report.missing]
    assert "512 records that the Inspector itself dropped" in told
    assert "steps and stages of 1 sends and receives" in told


@given(
    st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=1, max_size=6),
    st.permutations(range(3)),
)
def test_one_rank_is_never_late_and_file_order_is_irrelevant(times, order):
    files = [
        [header(rank, num_ranks=3), *(collective(sn, row[rank]) for sn, row in enumerate(times))]
        for rank in range(3)
    ]
    late = by(read_nccl(*files), "late-by")
    assert late == by(read_nccl(*(files[at] for at in order)), "late-by")
    expected = {
        rank: sum(max(row) - row[rank] for row in times) / len(times) / 1e3 for rank in range(3)
    }
    assert late == pytest.approx(expected)


def test_memory_is_bounded_whatever_the_numbers_are():
    joined = LongestTimes(max_blocks=2)
    for sn in (1, 10**12, 2**62, 5, 10**15):
        place = RecordOrigin(Process("a", 1), "c", 0, 2, None)
        joined.add(CollectiveRecord(place, "AllReduce", sn, 1.0, None))
    assert joined.num_left_out == 2


def test_numbers_far_apart_in_a_request_cost_little():
    lines = [header(0), *(collective(1000 * number, 1.0) for number in range(2_500))]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    report = SCORE_READERS["nccl-inspector"]([BodyText("body", body)])
    assert "collectives of more than 256,000" in [each.what for each in report.missing]
    assert report.scores[0].num == 2_500


BAD = [
    ('{"header": 1}', "got `int` - at `$.header`"),
    ("{}", "want header, coll_perf and the like"),
    ("[]", "no record of the Inspector"),
    ('{"header": {"id": "a", "rank": -1, "n_ranks": 2}}', "$.header.rank"),
    ('{"coll_perf": {"coll": "a", "coll_sn": 1, "coll_exec_time_us": 1}}', "before any header"),
    ('{"header": {"id": "a", "rank": 0, "n_ranks": 2}}', "no collective in it"),
    ('{"a": ' * 50_000, "no record of the Inspector"),
    ("# HELP nccl_bus_bandwidth_gbs", "no record of the Inspector"),
    ("", "NCCL_INSPECTOR_PROM_DUMP"),
]


@pytest.mark.parametrize(("line", "said"), BAD, ids=[said for _, said in BAD])
def test_malformed_records_are_refused_with_their_line(line, said):
    with pytest.raises(InvalidTrace) as refused:
        nccl_inspector.read([BodyText("0.log", line.encode())])
    assert said in str(refused.value)
    assert str(refused.value).startswith("0.log")
    assert "\n" not in str(refused.value)
