"""A worker's course, its operations against its peers', and the sentences above them."""

import math

import plotly.graph_objects as go
import pytest

from app.charts.base.theme import LIGHT, THEMES
from app.charts.worker.history import (
    findings_naming,
    position_of,
    worker_headline,
    worker_history,
    worker_window,
)
from app.charts.worker.operations import worker_operations
from app.engine.questions.worker_operations import WorkerOpTimes
from app.result.finding import Culprit
from tests.charts.results import found, numbers_in, result, unpacked

SLOWDOWN = [[1.0, 1.1], [1.2, 1.4]]
OPS = [
    WorkerOpTimes("forward-compute", 8, 0.8, 0.16, 0.2, (0.09, 0.1, 0.11)),
    WorkerOpTimes("forward-send", 8, 0.1, 0.5, 0.9, (0.01, 0.01, 0.02)),
    WorkerOpTimes("gc", 1, 0.0, 0.0, 0.0, (0.0, 0.0, 0.0)),
    WorkerOpTimes("optimizer", 8, 0.1, 0.01, 0.01, None),
]


def first(**more):
    return worker_window("1-8", [8, 9], SLOWDOWN, 1, 1, **more)


def test_the_others_are_all_workers_but_the_one():
    window = first()
    assert (window.slowdown, window.others) == (1.4, 1.1)
    by_step = first(per_step=[SLOWDOWN, [[1.0, 1.0], [1.0, 2.0]]]).by_step
    assert by_step == [(1.4, 1.1), (2.0, 1.0)]


def test_operations_are_relative_to_the_peers_median():
    figure = worker_operations(OPS, "dp 1, stage 1", theme=LIGHT)
    peers, p95, median = figure["data"]
    assert unpacked(peers["base"])[0] == pytest.approx(0.9)
    assert unpacked(median["x"])[0] == pytest.approx(1.6)
    assert unpacked(p95["x"])[0] == pytest.approx(2.0)
    # What is beyond the axis stands at its end, and its figure beside it.
    high = figure["layout"]["xaxis"]["range"][1]
    assert unpacked(median["x"])[1] == high == 4.0
    assert figure["layout"]["annotations"][1]["text"] == "50.00\u00d7"


def test_operations_without_peers_are_in_the_table_only():
    figure = worker_operations(OPS, "dp 1, stage 1", theme=LIGHT)
    assert len(figure["layout"]["yaxis"]["ticktext"]) == 2
    rows = figure["meta"]["table"]["rows"]
    assert rows[3] == ["Optimizer", 8, "10 ms", "10 ms", *["not measured"] * 3]


def test_a_worker_without_peers_says_so():
    figure = worker_operations(OPS[3:], "dp 0, stage 0", theme=LIGHT)
    assert figure["meta"]["text"] == "dp 0, stage 0 has no peers to be held against."


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
    finding = found(culprits=[culprit])
    assert bool(findings_naming([finding], 1, 1, "a")) is is_named


def test_position_counts_slower_workers():
    assert [position_of(SLOWDOWN, *worker) for worker in ((1, 1), (1, 0), (0, 0))] == [
        (1, 4), (2, 4), (4, 4),
    ]  # fmt: skip


def test_headline_of_a_culprit_worker():
    seen = result(SLOWDOWN, findings=[found(culprits=[Culprit(1, 1, "host-017")])])
    told, sub = worker_headline(seen, 1, 1, "host-017")
    assert told.startswith("dp 1, stage 1 on host-017 is 1.6\u00d7 slower than its peers")
    assert sub == (
        "Alone it would slow the job to 1.40\u00d7 of its ideal; none of the 4 workers costs more."
    )


def test_low_fidelity_withholds_the_workers_slowdown():
    low = result(SLOWDOWN, fidelity={"discrepancy": 0.2, "verdict": "low"}, findings=None)
    told, sub = worker_headline(low, 1, 1, None)
    assert "withheld" in told
    assert "1.40" not in told + sub


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_plotly_takes_both_figures(theme):
    for figure in (
        worker_history([first()], "dp 1, stage 1", theme=theme),
        worker_history([], "dp 1, stage 1", theme=theme),
        worker_operations(OPS, "dp 1, stage 1", theme=theme),
        worker_operations([], "dp 1, stage 1", theme=theme),
    ):
        go.Figure(data=figure["data"], layout=figure["layout"])
        assert all(math.isfinite(number) for number in numbers_in(figure))
        assert figure["meta"]["text"].endswith(".")
