import json

import pytest
from hypothesis import given

from app.engine.report import analyse, result_without_figures
from app.errors import InvalidTrace
from app.trace.window import SkippedStep
from tests.example_counts import many
from tests.job_strategies import windows
from tests.results import report_as_json
from tests.window_factory import Row, in_row, window

# docs/glossary.md has their meanings.
KEYS = [
    "schema", "window", "job", "steps", "skipped_steps", "imputed", "step_time_s",
    "launch_slowdown", "fidelity", "slowdown", "gpu_time_wasted", "gpu_hours_lost", "launch_delay",
    "step_slowdown",
    "optype_slowdown", "dp_rank_slowdown", "stage_slowdown", "worker_slowdown",
    "worker_slowdown_estimate", "m_w", "m_w_exact", "m_s", "stage_share", "findings", "ruled_out",
    "fingerprint", "changes", "per_step", "structures", "clocks", "stage_compute_s",
    "optype_time_s", "arrivals", "unexplained_share", "unexplained", "coverage", "advice",
    "step_started_s",
]  # fmt: skip


def a_result(**about: object) -> dict:
    rows = in_row(("forward-compute", 1), ("optimizer", 1))
    return report_as_json(analyse(window(rows, **about)))  # type: ignore[arg-type]


def test_a_result_has_the_keys_of_its_definition():
    assert sorted(a_result()) == sorted(KEYS)
    assert sorted(a_result()["per_step"]) == [
        "dp_rank_slowdown",
        "optype_slowdown",
        "stage_slowdown",
        "worker_slowdown",
    ]


@many(60)
@given(windows())
def test_a_result_is_finite_json(a_window):
    json.dumps(report_as_json(analyse(a_window)), allow_nan=False)


def test_a_window_without_a_complete_step_has_the_same_keys_without_figures():
    skipped = (SkippedStep(7, "worker 3 did not report", (3,)),)
    empty = result_without_figures(window([], state="incomplete", skipped=skipped)).as_json()
    full = a_result()
    assert set(empty) == set(full) - {"per_step"}
    assert {name: set(empty[name]) for name in ("window", "job", "step_time_s", "fidelity")} == {
        name: set(full[name]) for name in ("window", "job", "step_time_s", "fidelity")
    }
    assert empty["window"]["state"] == "incomplete"
    assert empty["window"]["missing"] == [3]
    assert empty["skipped_steps"] == [{"step": 7, "reason": "worker 3 did not report"}]
    assert empty["slowdown"] is empty["m_w"] is None
    assert empty["fidelity"] == {"discrepancy": None, "verdict": None, "step_discrepancy": []}
    json.dumps(empty, allow_nan=False)


def test_missing_ranks_are_listed_once_and_in_order():
    skipped = (SkippedStep(5, "late", (9, 3)), SkippedStep(6, "late", (3,)))
    assert a_result(skipped=skipped)["window"]["missing"] == [3, 9]


@pytest.mark.parametrize(("gap_s", "verdict"), [(0.5, "ok"), (0.6, "low")])
def test_low_fidelity_is_marked(gap_s, verdict):
    # Simulated 10 s, recorded 10 s and the gap: 0.5 / 10.5 is under 5 %, 0.6 / 10.6 over it.
    rows = [Row("forward-compute", 0, 9), Row("optimizer", 9 + gap_s, 1)]
    fidelity = report_as_json(analyse(window(rows)))["fidelity"]
    assert fidelity["verdict"] == verdict
    assert fidelity["discrepancy"] == pytest.approx(gap_s / (10 + gap_s))


def test_a_job_without_an_optimizer_ends_with_its_latest_operation():
    rows = in_row(("forward-compute", 1), ("backward-compute", 2))
    assert report_as_json(analyse(window(rows)))["step_time_s"]["simulated"] == [3.0]


def test_a_step_that_takes_no_time_has_no_slowdown_and_is_refused():
    rows = in_row(("forward-compute", 0), ("optimizer", 0))
    with pytest.raises(InvalidTrace, match="took no time"):
        analyse(window(rows))
