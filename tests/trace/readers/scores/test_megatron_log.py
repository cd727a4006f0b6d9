"""Logs of Megatron-LM: what its straggler detector and its timers say of single ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidTrace
from app.trace.readers.importing import MissingData
from tests.trace.readers.scores.score_texts import by, read_log

DETECTOR = (
    " 0: INFO:megatron.core.utils:[2024-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | "
    "MxRtt/Rnk: 6906.16ms/0 | MnPwr/Rnk: 601796W/8 | MxPwr/Rnk: 683.80W/18 | "
    "MnTmp/Rnk: 52C/0 | MxTmp/Rnk: 65.50C/21 | MnUtl/Rnk: 97%/8 | MxUtl/Rnk: 100%/6 | "
    "MnClk/Rnk: 1950MHz/28 | MxClk/Rnk: 1980.00MHz/0 | MnDRtt/Rnk: 14.27ms/23 | "
    "MxDRtt/Rnk: 34.65ms/3 | MnEtpt/Rnk: 150.00TF/0 | MxEtpt/Rnk: 300.00TF/8\n"
)
TIMERS = """\
 [2024-03-14 23:07:55.1] iteration       20/     100 | consumed samples:  80 | lm loss: 1.0 |
times across ranks (ms):
  forward-compute:
     rank  0: 100.00
     rank  1: 125.00
     rank  2: 100.00
  forward-recv:
     rank  1: 40.00
     rank  2: 1.00
some other line
     rank  3: 7.00
"""


def test_the_detector_by_hand():
    report = read_log(DETECTOR)
    assert by(report, "longest-round-trip") == {0: 6906.16}
    assert by(report, "lowest-power") == {8: pytest.approx(601.796)}  # milliwatts, called watts
    assert by(report, "highest-power") == {18: 683.80}
    assert by(report, "lowest-clock") == {28: 1950.0}
    assert by(report, "longest-get-batch") == {3: 34.65}
    slow = {(each.rank, each.metric): each.slowdown for each in report.scores if each.slowdown}
    assert slow == {(0, "longest-round-trip"): 2.0, (0, "lowest-throughput"): 2.0}
    assert report.missing[0].what == "ranks between the extremes in 1 detector lines"


def test_detector_counts_how_often_a_rank_is_named():
    report = read_log(DETECTOR * 2 + DETECTOR.replace("6906.16ms/0", "7000.00ms/5"))
    [often] = [
        each for each in report.scores if each.metric == "longest-round-trip" and not each.rank
    ]
    assert (often.num, often.of, report.num_reports) == (2, 3, 3)


def test_lists_of_the_best_and_worst_are_read():
    lines = (
        "^^^^ Bottom 2 Ranks with lowest  Etpt(TF): 150.00/0, 200.5/3\n"
        "^^^^ Top    2 Ranks with highest Etpt(TF): 300.00/8, 299/9\n"
    )
    report = read_log(DETECTOR + lines)
    assert by(report, "lowest-throughput-listed") == {0: 150.0, 3: 200.5}
    assert by(report, "highest-throughput-listed") == {8: 300.0, 9: 299.0}


def test_timers_are_compared_where_a_rank_does_its_own_work():
    report = read_log(TIMERS)
    found = {(each.section, each.rank): (each.value, each.slowdown) for each in report.scores}
    assert found == {
        ("forward-compute", 0): (100.0, 1.0),
        ("forward-compute", 1): (125.0, 1.25),
        ("forward-compute", 2): (100.0, 1.0),
        ("forward-recv", 1): (40.0, None),
        ("forward-recv", 2): (1.0, None),
    }
    assert {each.step for each in report.scores} == {20}


def test_timers_without_ranks_are_counted():
    block = "(min, max) time across ranks (ms):\n    forward-compute ......: (100.00, 160.00)\n"
    [lack] = [each for each in read_log(DETECTOR + 2 * block).missing if "timers" in each.what]
    assert lack == MissingData(
        "ranks in 2 blocks of timers (min, max)", "left out: --timing-log-option all names them"
    )
    with pytest.raises(InvalidTrace, match="its 1 blocks of timers name no rank"):
        read_log(block)


@pytest.mark.parametrize("prefix", ["12: ", "[default7]:", "node-3 | ", ""])
def test_launchers_may_write_before_each_line(prefix):
    with_prefix = "".join(f"{prefix}{line}\n" for line in (TIMERS + DETECTOR).splitlines())
    assert read_log(with_prefix).scores == read_log(TIMERS + DETECTOR).scores


def test_what_is_larger_than_any_measure_is_refused():
    # Of two the sum would be infinite, which no answer in JSON can hold.
    with pytest.raises(InvalidTrace, match="line 1: 1e308 is no measure"):
        read_log("MnRtt/Rnk: 1e308ms/0 | MxRtt/Rnk: 1e308ms/0\n")


def test_zero_time_has_no_slowdown():
    block = "times across ranks (ms):\n  forward-compute:\n"
    ranks = "".join(f"     rank  {rank}: {ms}\n" for rank, ms in enumerate(("1e-300", "1e15")))
    scores = {each.rank: each.score for each in read_log(block + ranks).scores}
    assert scores == {0: None, 1: 0.5}


def test_non_finite_values_are_unknown():
    report = read_log(DETECTOR.replace("52C", "nanC").replace("6906.16ms", "infms"))
    assert by(report, "lowest-temperature") == {0: None}
    assert by(report, "longest-round-trip") == {0: None}


BAD = [
    (DETECTOR.replace("52C", "5.2.1C"), "line 1: 5.2.1 is no number"),
    (DETECTOR.replace("52C", "-52C"), "line 1: -52 is no measure"),
    (TIMERS.replace("rank  1: 125.00", "rank  9999999999: 125.00"), "9999999999 is no rank"),
    ("nothing\n", "train with --log-straggler"),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said for _, said in BAD])
def test_malformed_detector_lines_are_refused_with_their_line(text, said):
    with pytest.raises(InvalidTrace) as refused:
        read_log(text)
    assert str(refused.value).startswith("training.log")
    assert said in str(refused.value)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r")), max_size=5))
def test_other_lines_are_ignored(others):
    """Whatever else a job prints between blocks."""
    noise = "".join(f"{line}\n" for line in others if "rank" not in line.lower())
    assert read_log(noise + DETECTOR + noise).scores[:2] == read_log(DETECTOR).scores[:2]
