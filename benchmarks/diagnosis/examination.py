"""One simulated job from its number to its outcome, with details if it was misjudged."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from app.diagnosis.warm_up import warm_up
from app.result.finding import Finding
from app.synth.faults.fault import Fault
from benchmarks.diagnosis.drawn_jobs import JobNumber, JobPlan, plan_of
from benchmarks.diagnosis.observation import (
    ObservedWindow,
    analysis_seconds,
    judged_window,
    observed_run,
)
from benchmarks.diagnosis.truth import (
    DiagnosisOutcome,
    StatedFinding,
    answers_to,
    truths,
    workers_of_culprits,
)
from benchmarks.diagnosis.verdict import false_findings, fault_as_json, finding_as_json, wrongs


def examine(numbered: JobNumber) -> DiagnosisOutcome:
    """Simulate, analyse and judge the job of this number; deterministic except for times.

    Raises:
        RuntimeError: an unexpected error; the message has the number.
    """
    warm_up()
    try:
        plan = plan_of(numbered)
        return outcome_of(plan, numbered, windows_of(plan))
    except Exception as error:
        # As what it is, a StopIteration would end the whole run as if no job were left.
        raise RuntimeError(f"job {numbered.number} failed: {error!r}") from error


def windows_of(plan: JobPlan) -> list[ObservedWindow]:
    """All windows of the job, one run after the other."""
    return [
        observed
        for attempt in plan.attempts
        for observed in observed_run(attempt, plan.window_steps, plan.habits)
    ]


def outcome_of(
    plan: JobPlan, numbered: JobNumber, windows: Sequence[ObservedWindow]
) -> DiagnosisOutcome:
    """The job's true faults and its findings."""
    last = judged_window(windows, plan.window_steps)
    before = [
        observed for observed in windows if numbered.is_healthy or observed.position < last.position
    ]
    residuals_ms = [
        residual_ms
        for observed in windows
        if (residual_ms := observed.result.clocks.residual_ms) is not None
    ]
    analysis_s, diagnosis_s = analysis_seconds(last)
    return DiagnosisOutcome(
        number=numbered.number,
        what=plan.what,
        family=numbered.family,
        faults=() if numbered.is_healthy else truths(plan, last.all_steps),
        findings=stated_findings(plan, last),
        withheld=frozenset(
            cause.cause for cause in last.result.ruled_out or () if cause.insufficient
        ),
        early=tuple(_false_findings(plan, before)),
        num_changes=sum(map(_num_changes, windows)),
        num_failed=sum(observed.has_failed for observed in windows),
        clock_residual_s=max(residuals_ms) / 1e3 if residuals_ms else None,
        analysis_s=analysis_s,
        diagnosis_s=diagnosis_s,
    )


def stated_findings(plan: JobPlan, observed: ObservedWindow) -> tuple[StatedFinding, ...]:
    """The window's findings, most costly first."""
    return tuple(_stated_finding(plan, finding) for finding in observed.result.findings or ())


def _stated_finding(plan: JobPlan, finding: Finding) -> StatedFinding:
    world, onset_step = plan.simulated.world, finding.onset_step
    return StatedFinding(
        cause=finding.cause,
        workers=workers_of_culprits(finding.culprits, world.parallelism, world.hosts),
        confidence=finding.confidence,
        cost=finding.cost,
        onset=None if onset_step is None else int(np.searchsorted(plan.steps, onset_step)),
        sentence=finding.sentence,
    )


def _false_findings(plan: JobPlan, before: Iterable[ObservedWindow]) -> Iterable[StatedFinding]:
    """Findings whose cause was not present, or not yet."""
    for observed in before:
        begun = (fault for fault in plan.simulated.faults if _has_begun(fault, observed))
        world = plan.simulated.world
        true_causes = {answer.cause for fault in begun for answer in answers_to(fault, world)}
        yield from (
            each for each in stated_findings(plan, observed) if each.cause not in true_causes
        )


def _has_begun(fault: Fault, observed: ObservedWindow) -> bool:
    return fault.when.first_step <= observed.all_steps[-1]


def _num_changes(observed: ObservedWindow) -> int:
    """Number of onsets and changes in a window's result."""
    findings, changes = observed.result.findings or (), observed.result.changes or ()
    return len(changes) + sum(finding.onset_step is not None for finding in findings)


def job_report(numbered: JobNumber) -> dict[str, Any]:
    """How the job was simulated, its faults, its findings, and the result of every window."""
    plan = plan_of(numbered)
    windows = windows_of(plan)
    outcome = outcome_of(plan, numbered, windows)
    simulated = plan.simulated
    return {
        "job": numbered.number,
        "what": plan.what,
        "wrong": wrongs(outcome),
        "truth": [fault_as_json(fault) for fault in outcome.faults],
        "said": [finding_as_json(each) for each in outcome.findings],
        "false": [finding_as_json(each) for each in false_findings(outcome)],
        "made": {
            "faults": [repr(fault) for fault in simulated.faults],
            "events": [repr(event) for event in plan.events],
            "costs": repr(simulated.costs),
            "cluster": repr(simulated.cluster),
            "odd_steps": repr(simulated.odd_steps),
            "parallelism": repr(simulated.parallelism),
            "schedule": simulated.schedule.name,
            "hosts": {
                host: simulated.world.workers_of_host(host) for host in simulated.world.host_names
            },
            "habits": repr(plan.habits),
            "seed": simulated.seed,
        },
        "steps": list(plan.steps),
        "windows": [_window(observed) for observed in windows],
    }


def _window(observed: ObservedWindow) -> dict[str, Any]:
    result = replace(observed.result, per_step=None)
    return {"skipped": len(observed.window.skipped), **result.as_json()}
