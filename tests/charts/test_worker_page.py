"""A worker's course, its operations against its peers', and the sentences above them."""

import math

import plotly.graph_objects as go
import pytest

from app.charts.theme import LIGHT, THEMES
from app.charts.worker_course import worker_course, worker_window
from app.charts.worker_ops import worker_ops
from app.charts.worker_story import findings_naming, place_of, worker_story
from app.engine.worker_ops import OpsOfType
from tests.charts.results import numbers_in, result, unpacked

SLOWDOWN = [[1.0, 1.1], [1.2, 1.4]]
OPS = [
    OpsOfType("forward-compute", 8, 0.8, 0.16, 0.2, (0.09, 0.1, 0.11)),
    OpsOfType("forward-send", 8, 0.1, 0.5, 0.9, (0.01, 0.01, 0.02)),
    OpsOfType("gc", 1, 0.0, 0.0, 0.0, (0.0, 0.0, 0.0)),
    OpsOfType("optimizer", 8, 0.1, 0.01, 0.01, None),
]


def first(**more):
    return worker_window("1-8", [8, 9], SLOWDOWN, 1, 1, **more)


def test_the_others_are_all_workers_but_the_one():
    window = first()
    assert (window.slowdown, window.others) == (1.4, 1.1)
    by_step = first(per_step=[SLOWDOWN, [[1.0, 1.0], [1.0, 2.0]]]).by_step
    assert by_step == [(1.4, 1.1), (2.0, 1.0)]


def test_a_worker_that_is_alone_has_no_others():
    assert worker_window("1-8", [8], [[1.3]], 0, 0).others is None


def test_a_window_without_figures_by_step_is_a_level_line():
    figure = worker_course([first()], "dp 1, stage 1", theme=LIGHT)
    own = figure["data"][-1]
    assert unpacked(own["y"]) == [1.4, 1.4, None]
    assert figure["meta"]["text"] == (
        "Over 1 window, dp 1, stage 1 alone would slow the job to 1.40\u00d7 of its ideal."
    )


def test_a_gap_between_windows_is_drawn_as_a_gap():
    late = worker_window("1-20", [20, 21], SLOWDOWN, 1, 1)
    figure = worker_course([first(), late], "dp 1, stage 1", theme=LIGHT)
    assert "10 skipped" in str(figure["layout"]["annotations"])
    assert unpacked(figure["data"][-1]["y"]).count(None) == 2


def test_nothing_is_orange_where_nothing_is_lost():
    healthy = worker_window("1-8", [8, 9], [[1.0, 1.01]], 0, 1)
    names = [each["name"] for each in worker_course([healthy], "x", theme=LIGHT)["data"]]
    assert names == ["median of the others", "this worker"]


def test_operations_stand_by_their_peers_median():
    figure = worker_ops(OPS, "dp 1, stage 1", theme=LIGHT)
    peers, p95, median = figure["data"]
    assert unpacked(peers["base"])[0] == pytest.approx(0.9)
    assert unpacked(median["x"])[0] == pytest.approx(1.6)
    assert unpacked(p95["x"])[0] == pytest.approx(2.0)
    # What is beyond the axis stands at its end, and its figure beside it.
    high = figure["layout"]["xaxis"]["range"][1]
    assert unpacked(median["x"])[1] == high == 4.0
    assert figure["layout"]["annotations"][1]["text"] == "50.00\u00d7"


def test_what_cannot_be_compared_is_told_in_the_table_only():
    figure = worker_ops(OPS, "dp 1, stage 1", theme=LIGHT)
    assert len(figure["layout"]["yaxis"]["ticktext"]) == 2
    rows = figure["meta"]["table"]["rows"]
    assert rows[3] == ["Optimizer", 8, "10 ms", "10 ms", *["not measured"] * 3]


def test_a_worker_without_peers_says_so():
    figure = worker_ops(OPS[3:], "dp 0, stage 0", theme=LIGHT)
    assert figure["meta"]["text"] == "dp 0, stage 0 has no peers to be held against."


FOUND = {"cause": "slow-worker", "cost": 0.2}


@pytest.mark.parametrize(
    ("culprit", "is_named"),
    [
        ({"dp_rank": 1, "stage": 1, "host": "a"}, True),
        ({"dp_rank": 1, "stage": 0, "host": "a"}, False),
        ({"stage": 1}, True),
        ({"dp_rank": 1}, True),
        ({"dp_rank": 0}, False),
        ({"host": "a"}, True),
        ({"host": "b"}, False),
        ({}, False),
    ],
)
def test_a_finding_names_a_worker_by_itself_its_stage_its_replica_or_its_host(culprit, is_named):
    finding = {**FOUND, "culprits": [culprit], "sentence": "x"}
    assert bool(findings_naming([finding], 1, 1, "a")) is is_named


def test_the_place_counts_those_that_are_slower():
    assert [place_of(SLOWDOWN, *worker) for worker in ((1, 1), (1, 0), (0, 0))] == [
        (1, 4), (2, 4), (4, 4),
    ]  # fmt: skip


def test_the_story_of_a_worker_to_blame():
    seen = result(SLOWDOWN)
    seen["findings"][0]["culprits"] = [{"dp_rank": 1, "stage": 1, "host": "host-017"}]
    told, sub = worker_story(seen, 1, 1, "host-017")
    assert told.startswith("dp 1, stage 1 on host-017 is 1.6\u00d7 slower than its peers")
    assert sub == (
        "Alone it would slow the job to 1.40\u00d7 of its ideal; none of the 4 workers costs more."
    )


def test_the_story_of_a_worker_to_blame_for_nothing():
    told, sub = worker_story(result(SLOWDOWN), 0, 1, None)
    assert told == "dp 0, stage 1 is to blame for nothing that was found."
    assert sub.endswith("2 of 4 workers cost more.")


def test_with_low_fidelity_no_figure_is_told():
    low = result(SLOWDOWN, fidelity={"discrepancy": 0.2, "verdict": "low"}, findings=None)
    told, sub = worker_story(low, 1, 1, None)
    assert "withheld" in told
    assert "1.40" not in told + sub


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_plotly_takes_both_figures(theme):
    for figure in (
        worker_course([first()], "dp 1, stage 1", theme=theme),
        worker_course([], "dp 1, stage 1", theme=theme),
        worker_ops(OPS, "dp 1, stage 1", theme=theme),
        worker_ops([], "dp 1, stage 1", theme=theme),
    ):
        go.Figure(data=figure["data"], layout=figure["layout"])
        assert all(math.isfinite(number) for number in numbers_in(figure))
        assert figure["meta"]["text"].endswith(".")
