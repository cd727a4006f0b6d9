from dataclasses import replace

import numpy as np
import pytest
import structlog
from msgspec import structs

from app.charts.job.headline import JobFacts, headline
from app.diagnosis.job_history import History
from app.engine.report import analyse, report_result
from app.formatting import upper_first
from app.monitor import observe
from app.result.window_result import SkippedStepRecord
from app.result.words import WAITS_NOT_RECORDED
from app.synth.job import SimulatedJob
from app.trace.window import SkippedStep, Window
from tests.consumer.jobs import HEALTHY, SLOW, UNEXPLAINED
from tests.window_factory import Row, window


def made_window(made: SimulatedJob, *steps: int, state="complete") -> Window:
    return Window(made.job, 1, steps[0], steps, made.make(steps), state=state)


def test_healthy_window_has_figures_and_no_alert():
    healthy = made_window(HEALTHY, 0, 1, 2)
    seen = observe(healthy)
    assert seen.verdict == "ok"
    figures = report_result(analyse(healthy))
    looked_for = (
        *("findings", "ruled_out", "fingerprint", "changes"),
        *("arrivals", "unexplained_share", "unexplained", "coverage", "observations", "advice"),
        "step_started_s",
    )
    of_causes = {name: getattr(seen.result, name) for name in looked_for}
    assert seen.result == structs.replace(figures, **of_causes)
    assert (seen.result.findings, seen.result.changes) == ((), ())
    assert len(seen.result.ruled_out or ()) == 15
    assert seen.result.slowdown is not None
    assert seen.result.slowdown < 1.1


def test_window_facts_are_the_input_of_alert_rules():
    slow = made_window(SLOW, 4, 5)
    seen = observe(slow)
    assert (seen.facts.window_id, seen.facts.place) == ("1-4", (1, 4))
    assert (seen.facts.state, seen.facts.verdict) == ("complete", "ok")
    assert seen.facts.result is seen.result
    assert seen.facts.num_gpus == slow.job.num_gpus
    assert seen.facts.took_s == sum(s or 0.0 for s in seen.result.step_time_s.recorded)
    assert seen.facts.usual_step_s is None


def test_rules_on_the_step_time_see_earlier_steps_only():
    first = observe(made_window(HEALTHY, 0, 1, 2))
    assert first.recent is not None
    history = History().extended(first.recent)
    took_s = float(np.median(first.recent.step_s))
    known = History(np.arange(-40, 3), np.full(43, took_s))
    assert observe(made_window(HEALTHY, 3, 4), history).facts.usual_step_s is None  # too few
    assert observe(made_window(HEALTHY, 3, 4), known).facts.usual_step_s == pytest.approx(took_s)


def test_finding_of_a_slow_window_has_cause_and_cost():
    (found,) = observe(made_window(SLOW, 4, 5)).result.findings or ()
    assert found.cause == "slow-worker"
    assert found.cost is not None
    assert f"it costs {100 * found.cost:.0f} %" in found.sentence


def test_unexplained_figures_have_a_low_verdict():
    seen = observe(made_window(UNEXPLAINED, 0))
    assert seen.verdict == seen.facts.verdict == "low"
    assert (seen.result.slowdown or 0.0) >= 1.1


def test_window_without_a_complete_step_has_a_reason():
    skipped = SkippedStep(7, "rank 3 did not report the step in time", (3,))
    nothing = replace(
        made_window(HEALTHY, 7),
        steps=(),
        trace=HEALTHY.make([7]).select(HEALTHY.make([7]).step < 0),
        skipped=(skipped,),
        state="incomplete",
    )
    seen = observe(nothing)
    assert seen.report is None
    assert seen.verdict is None
    assert seen.result.slowdown is None
    assert seen.result.window.missing == (3,)
    assert seen.result.skipped_steps == (SkippedStepRecord(step=7, reason=skipped.reason),)
    assert seen.facts.verdict is None
    assert seen.result.findings is None  # one step is too few for a diagnosis


def test_silent_worker_is_found_without_a_complete_step():
    skipped_steps = tuple(
        SkippedStep(step, "rank 3 did not report it", (3,)) for step in range(7, 15)
    )
    nothing = replace(
        made_window(HEALTHY, 7),
        steps=(),
        trace=HEALTHY.make([7]).select(HEALTHY.make([7]).step < 0),
        skipped=skipped_steps,
        state="incomplete",
    )
    result = observe(nothing).result
    [finding] = result.findings or ()
    assert (finding.cause, finding.cost) == ("silent-worker", None)
    assert len(finding.culprits) == 1
    assert {denied.insufficient for denied in result.ruled_out or ()} == {True}


def test_dp_ranks_that_wait_in_no_recorded_collective_are_never_healthy():
    # Rank 1 computes 1.6 times as long; the backwards of rank 0 end with its waits.
    rows = [
        row.on(step=step, dp_rank=dp_rank)
        for step in range(8)
        for dp_rank, forward_s in enumerate((0.020, 0.032))
        for row in (
            Row("forward-compute", 0.0, forward_s),
            Row("backward-compute", forward_s, 0.096 - forward_s),
            Row("optimizer", 0.096, 0.002),
        )
    ]
    result = observe(window(rows, dp_size=2)).result
    assert (result.slowdown, result.fidelity.discrepancy) == pytest.approx((1.0, 0.0), abs=0.01)
    assert (result.fidelity.verdict, result.findings, result.wait_coverage) == ("low", None, 0.0)
    [observation] = result.observations or ()
    assert (observation.kind, observation.sentence) == (
        "waits-not-recorded",
        upper_first(WAITS_NOT_RECORDED),
    )
    [slow] = [denied for denied in result.ruled_out or () if denied.cause == "slow-worker"]
    assert (slow.insufficient, slow.reason) == (True, WAITS_NOT_RECORDED)
    said = headline("low-fidelity", result, JobFacts())
    assert said.sentence == f"{upper_first(WAITS_NOT_RECORDED)}."
    with_transfers = [
        *rows,
        *(
            Row("grads-reduce-scatter", 0.098, 0.001, dp_rank=dp_rank, step=step)
            for step in range(8)
            for dp_rank in range(2)
        ),
    ]
    result = observe(window(with_transfers, dp_size=2)).result
    assert (result.fidelity.verdict, result.wait_coverage, result.observations) == ("ok", None, ())


@pytest.mark.parametrize("training_steps", [0, 2])
def test_steps_with_nothing_but_pauses_are_refused_in_words(training_steps):
    rows = [
        row.on(step=step, dp_rank=dp_rank)
        for step in range(6)
        for dp_rank in range(2)
        for row in (
            Row("gc-pause", 0.5, 0.01),
            *[Row("grads-reduce-scatter", 0.0, 1.0)] * (step < training_steps),
        )
        if dp_rank or row.optype != "gc-pause" or step % 3 == 0
    ]
    result = observe(window(rows, dp_size=2)).result
    assert result.steps == tuple(range(training_steps))
    reasons = {skip.step: skip.reason for skip in result.skipped_steps}
    assert list(reasons) == list(range(training_steps, 6))
    assert all("nothing but annotations" in reason for reason in reasons.values())


def circle():
    """A window whose only step cannot be replayed."""
    # Recorded: stage 0 runs the backward before the forward that it depends on.
    rows = [
        Row("backward-recv", 0, 1),
        Row("backward-compute", 1, 1),
        Row("forward-compute", 6, 1),
        Row("forward-send", 7, 1),
        Row("forward-recv", 0, 2, stage=1),
        Row("forward-compute", 2, 1, stage=1),
        Row("backward-compute", 3, 2, stage=1),
        Row("backward-send", 5, 1, stage=1),
    ]
    return window(
        rows,
        pp_size=2,
        skipped=(SkippedStep(1, "rank 0 did not report the step in time", (0,)),),
    )


def test_steps_with_circular_waits_are_skipped_with_that_reason():
    seen = observe(circle())
    assert seen.report is None
    assert seen.result.slowdown is None
    assert seen.result.steps == ()
    first, second = seen.result.skipped_steps
    assert (first.step, second.step) == (0, 1)
    assert "in a circle" in first.reason
    assert seen.facts.verdict is None


@pytest.mark.parametrize("error", [StopIteration, RuntimeError, AttributeError, AssertionError])
def test_error_in_the_diagnosis_keeps_the_figures(monkeypatch, error):
    def fails(*_):
        raise error("ours")

    monkeypatch.setattr("app.monitor.diagnose", fails)
    with structlog.testing.capture_logs() as logs:
        seen = observe(made_window(SLOW, 4, 5))
    assert seen.report is not None
    assert seen.recent is None
    assert seen.result == report_result(seen.report)
    assert [each["event"] for each in logs] == ["window not diagnosed"]


def test_out_of_memory_in_the_diagnosis_is_raised(monkeypatch):
    def fails(*_):
        raise MemoryError

    monkeypatch.setattr("app.monitor.diagnose", fails)
    with pytest.raises(MemoryError):
        observe(made_window(SLOW, 4, 5))


def test_result_of_a_slow_window_advises_the_fix_of_its_cause():
    advice = observe(made_window(SLOW, 4, 5)).result.advice
    assert advice is not None
    assert (advice.fix, advice.cause) == ("replace-worker", "slow-worker")
    assert advice.speed_up > 1.01


def test_open_window_has_no_advice():
    window = replace(made_window(SLOW, 4, 5), state="open")
    assert observe(window).result.advice is None


def test_error_in_the_advice_keeps_findings(monkeypatch):
    def fail(case):
        raise LookupError("a bug")

    monkeypatch.setattr("app.monitor.top_fix", fail)
    seen = observe(made_window(SLOW, 4, 5))
    assert seen.result.advice is None
    assert seen.result.findings
