"""Straggler reports of the Resiliency Extension: as its users write them, and as it logs them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidTrace
from app.trace.readers.importing import MissingData
from app.trace.readers.input_file import lines_of
from app.trace.readers.scores.score_report import Score
from tests.trace.readers.scores.score_texts import by, read_nvrx


def test_a_report_by_hand():
    report = read_nvrx(
        {
            "iteration": 100,
            "timestamp": 1758464000.5,
            "gpu_relative_perf_scores": {"0": 1.0, "1": 0.5},
            "section_individual_perf_scores": {"fwd": {"1": 0.8}},
            "rank_to_node": {"1": "host-b"},
        }
    )
    assert report.scores[0] == Score(
        rank=1,
        node="host-b",
        section="GPU kernels",
        metric="relative-performance",
        unit="of best",
        value=0.5,
        mean=0.5,
        score=0.5,
        slowdown=2.0,
        num=1,
        of=1,
        step=100,
        at_s=1758464000.5,
    )
    assert [(each.rank, each.section) for each in report.scores[1:]] == [
        (1, "section fwd"),
        (0, "GPU kernels"),
    ]
    assert (report.source, report.num_reports, report.missing) == ("nvrx", 1, ())


def test_reports_over_time_are_one_series_a_rank():
    report = read_nvrx(
        {"step": 1, "gpu_relative_perf_scores": {"0": 1.0, "1": 0.4}},
        {"step": 2, "gpu_relative_perf_scores": {"0": 1.0, "1": 0.8}},
        {"step": 3, "gpu_relative_perf_scores": {"0": 1.0}},
    )
    worst = report.scores[0]
    assert (worst.rank, worst.value, worst.mean, worst.step) == (1, 0.8, pytest.approx(0.6), 2)
    assert (worst.num, worst.of, report.num_reports) == (2, 3, 3)


def test_unknown_scores_stay_unknown_and_are_counted():
    report = read_nvrx(text='{"gpu_relative_perf_scores": {"0": NaN, "1": null, "2": 0.9}}')
    unknown = [each for each in report.scores if each.score is None]
    assert [(each.rank, each.value, each.slowdown) for each in unknown] == [
        (0, None, None),
        (1, None, None),
    ]
    [lack] = report.missing
    assert lack.what == "2 of 3 scores (null or NaN)"


def test_a_score_of_nothing_has_no_slowdown():
    [score] = read_nvrx({"gpu_relative_perf_scores": {"0": 0.0}}).scores
    assert (score.score, score.slowdown) == (0.0, None)


def test_the_extensions_own_example_is_read():
    report = read_nvrx(
        {
            "timestamp": 5.0,
            "iteration": 300,
            "performance_data": {
                "relative_scores": {"0": 0.7},
                "individual_scores": {"0": 0.9},
            },
        }
    )
    assert [(each.metric, each.score, each.step) for each in report.scores] == [
        ("relative-performance", 0.7, 300),
        ("individual-performance", 0.9, 300),
    ]


def test_a_report_over_many_lines_is_read():
    text = json.dumps({"gpu_relative_perf_scores": {"3": 0.5}}, indent=2)
    assert by(read_nvrx(text=text), "relative-performance") == {3: 0.5}


def test_times_of_a_ranks_own_sections_are_read():
    summaries = {"fwd": {"Statistic.MED": 12.5, "MAX": 80.0}}
    report = read_nvrx(
        {"gpu_relative_perf_scores": {}, "rank": 4, "local_section_summaries": summaries}
    )
    assert by(report, "median-time") == {4: 12.5}


LOG = """\
[rank0] GPU relative performance:
 Worst performing 2/512 ranks:
  Rank=432 Node=h100-026 Score=0.61
  Rank=7 Node=h100-001 Score=nan
 Best performing 1/512 ranks:
  Rank=0 Node=h100-000 Score=1.00
GPU individual performance:
  Rank=76 Node=h100-012 Score=0.98
STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. \
Affected ranks: {StragglerId(rank=432, node='h100-026'), StragglerId(rank=8, node='x')}
STRAGGLER DETECTION WARNING: Some GPUs performance dropped. Affected ranks: [162, 79]
"""


def test_its_log_is_read():
    report = read_nvrx(text=LOG)
    assert by(report, "relative-performance") == {432: 0.61, 7: None, 0: 1.0}
    assert by(report, "individual-performance") == {76: 0.98}
    assert by(report, "relative-performance-warning") == {432: 1.0, 8: 1.0}
    assert by(report, "individual-performance-warning") == {162: 1.0, 79: 1.0}
    assert next(each.node for each in report.scores if each.rank == 432) == "h100-026"
    assert (
        MissingData(
            "ranks between the best and the worst in 1 printed tables",
            "the log has the extremes only: write the reports as JSON to see all",
        )
        in report.missing
    )


def test_a_score_under_no_heading_is_counted_and_left_out():
    text = "  Rank=1 Node=a Score=0.5\n" + LOG
    [unassigned] = [each for each in read_nvrx(text=text).missing if "heading" in each.cost]
    assert unassigned.what.endswith("of 1 lines 'Rank=.. Score=..'")


BAD = [
    ('{"a": 1}', "line 1: no report: it has none of gpu_individual_perf_scores"),
    ('{"gpu_relative_perf_scores": []}', "gpu_relative_perf_scores: want an object, not a list"),
    ('{"gpu_relative_perf_scores": {"x": 1}}', "'x' is no rank"),
    ('{"gpu_relative_perf_scores": {"-1": 1}}', "'-1' is no rank"),
    ('{"gpu_relative_perf_scores": {"99999999999": 1}}', "is no rank"),
    ('{"gpu_relative_perf_scores": {"0": "a"}}', "want a number, not text"),
    ('{"gpu_relative_perf_scores": {"0": true}}', "want a number, not true or false"),
    ('{"gpu_relative_perf_scores": {"0": -0.1}}', "is no measure"),
    ('{"gpu_relative_perf_scores": {"0": Infinity}}', "is no measure"),
    ('{"gpu_relative_perf_scores": {"0": 1' + "0" * 400 + "}}", "is no measure"),
    ('{"gpu_relative_perf_scores": {"0": 1' + "0" * 5000 + "}}", "no JSON"),
    ('{"gpu_relative_perf_scores": {}, "iteration": "7"}', "iteration: '7' is no step"),
    ('{"gpu_relative_perf_scores": {}, "timestamp": 1e300}', "timestamp"),
    ('{"gpu_relative_perf_scores": {}}\n[]', "line 2: want an object, not a list"),
    ('{"gpu_relative_perf_scores": {}}\n\n{', "line 3: no JSON"),
    ('{"a": ' * 50_000, "line 1: brackets are nested too deeply"),
    ("", "no score in it"),
    ("step 1\nstep 2", "no score in it"),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said for _, said in BAD])
def test_malformed_reports_are_refused_with_their_line(text, said):
    with pytest.raises(InvalidTrace) as refused:
        read_nvrx(text=text)
    assert said in str(refused.value)
    assert str(refused.value).startswith("reports.jsonl")
    assert "\n" not in str(refused.value)


def test_names_are_one_line_of_bounded_length():
    node = "a\x1b[31m\nb" + "c" * 1000
    scores = {"0": 1.0}
    report = read_nvrx({"gpu_relative_perf_scores": scores, "rank_to_node": {"0": node}})
    assert report.scores[0].node.startswith(
        "a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}b"
    )
    assert len(report.scores[0].node) == 128


@given(st.lists(st.binary(max_size=7), max_size=6), st.integers(0, 4))
def test_lines_are_those_of_the_text_wherever_it_is_cut(pieces, max_bytes):
    found = [*lines_of(pieces, max_bytes)]
    whole = b"".join(pieces)
    texts = whole.split(b"\n")[: None if whole.rpartition(b"\n")[2] else -1]
    assert [line.is_whole for line in found] == [len(text) <= max_bytes for text in texts]
    assert [line.text for line in found] == [text[: max_bytes + 1].rstrip(b"\r") for text in texts]
