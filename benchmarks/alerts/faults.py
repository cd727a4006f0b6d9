"""One fault that begins, costs enough to be reported, and ends: is the alert right?

Faults are those of the diagnosis benchmark. A silent worker costs no time and is detected by the
clock alone. The verdict over many outcomes is a pure function.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from app.alerts.alert import AlertEvent, Blame
from app.alerts.facts import WindowFacts
from app.alerts.rule import default_rules
from app.diagnosis.warm_up import warm_up
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import SilentWorker
from app.synth.job import SimulatedJob, SimulatedRun
from app.synth.truth import FaultStepTimes, step_times
from benchmarks.alerts.simulated_service import (
    WINDOW_STEPS,
    RuleEvents,
    SimulatedService,
    evaluate_rules,
    facts_of,
    simulated_service,
)
from benchmarks.diagnosis.drawn_jobs import JobNumber, JobPlan, plan_of
from benchmarks.diagnosis.fault_kinds import kinds_of
from benchmarks.diagnosis.truth import answers_to, workers_of_culprits

MIN_COST = 0.10
# Windows before, with and after; and seconds with and after: 1.5 and 2 times what the default rules
# require, since windows of low fidelity do not count.
_BEFORE, _WITH, _AFTER = 5, 6, 6
_WITH_S, _AFTER_S = 45.0, 120.0
_SECOND_TRY_FACTOR = 4
_MAX_STEPS = 1000
SILENT_RULE = "silent-worker"
_WINDOWS_BEFORE_SILENCE = 2
# Simulated steps are short: a worker is silent after this many windows.
_SILENT_AFTER_WINDOWS = 3
_SILENT_TIMES, _TIMES_AFTER_SILENCE = 3, 2  # times as long
# The bars of the diagnosis itself: a notification must be as good.
MIN_CAUSE_RIGHT = 0.97
MIN_CULPRIT_RIGHT = 0.99


@dataclass(frozen=True, slots=True)
class AlertOutcome:
    """The alert of one fault; where `counts` is False, only the first four fields have a meaning.

    `missed_at_first` is what the first try missed: all other fields are then of the longer try.
    `early` are sentences of alerts that fired before the fault.
    """

    number: int
    kind: str
    what: str
    cost: float
    counts: bool = True
    is_alerted: bool = False
    rule: str | None = None
    sentence: str | None = None
    is_cause_right: bool = False
    has_place: bool = False
    is_culprit_right: bool = False
    is_resolved: bool = False
    missed_at_first: str | None = None
    early: tuple[str, ...] = ()

    @property
    def miss(self) -> str | None:
        """What was missed, or None."""
        if not self.is_alerted:
            return "not alerted"
        return None if self.is_resolved else "not resolved"

    @property
    def is_wrong(self) -> bool:
        """Whether anything was missed or fired too early."""
        return self.miss is not None or bool(self.early)

    @property
    def is_unsure(self) -> bool:
        """Whether cause or culprit are wrong."""
        return not self.is_cause_right or (self.has_place and not self.is_culprit_right)


def is_wanted(numbered: JobNumber) -> bool:
    """Whether the job has one fault."""
    return len(kinds_of(numbered.index)) == 1


def try_fault(numbered: JobNumber) -> AlertOutcome:
    """The alert of this job, whose fault lasts for a while; deterministic.

    Windows of low fidelity do not count. Where too few others are left, the fault is tried again
    for longer, and the outcome says so.
    """
    warm_up()
    plan = plan_of(numbered)
    if plan.kinds[0].cause == SilentWorker.cause:
        return try_silent_fault(plan, numbered.number)
    found = _try_times(numbered, 1)
    if not found.counts or found.miss is None:
        return found
    again = _try_times(numbered, _SECOND_TRY_FACTOR)
    return replace(again, missed_at_first=found.miss, early=(*found.early, *again.early))


def _try_times(numbered: JobNumber, times: int) -> AlertOutcome:
    plan, fault_steps = _episode(plan_of(numbered), times)
    (cost,) = FaultStepTimes.of(plan.simulated, fault_steps).costs()
    cost = cost or 0.0
    outcome = AlertOutcome(
        numbered.number, plan.kinds[0].name, plan.what, cost, counts=cost >= MIN_COST
    )
    if not outcome.counts:
        return outcome
    attempt = SimulatedRun(1, plan.simulated, plan.steps)
    facts = facts_of([attempt], plan.habits)
    return _outcome_of_rules(outcome, plan, fault_steps, facts)


def _outcome_of_rules(
    outcome: AlertOutcome, plan: JobPlan, fault_steps: range, facts: list[WindowFacts]
) -> AlertOutcome:
    events = evaluate_rules(facts, default_rules())
    early = [event for event in events.firing if _step(event) + WINDOW_STEPS <= fault_steps.start]
    fired = [event for event in events.firing if event not in early]
    best = fired[0] if fired else None
    blame = None if best is None else best.detail.blame
    return replace(
        outcome,
        is_alerted=bool(fired),
        rule=None if best is None else best.rule,
        sentence=None if best is None else best.sentence,
        is_cause_right=_has_cause(plan, blame),
        has_place=plan.kinds[0].has_place,
        is_culprit_right=_has_culprits(plan, blame),
        is_resolved=_is_resolved(events),
        early=tuple(event.sentence for event in early),
    )


def _episode(plan: JobPlan, times: int) -> tuple[JobPlan, range]:
    """The job with its fault for some windows, and the steps of these."""
    fault, first = plan.simulated.faults[0], plan.steps[0]
    begins = first + _BEFORE * WINDOW_STEPS
    probe = replace(plan.simulated, faults=(replace(fault, when=FaultSteps(begins, WINDOW_STEPS)),))
    slow_s = _step_s(probe, begins)
    num_with = _num_steps(_WITH * times, times * _WITH_S / slow_s)
    num_after = _num_steps(_AFTER * times, times * _AFTER_S / _step_s(probe, begins - WINDOW_STEPS))
    when = FaultSteps(begins, num_with)
    simulated = replace(plan.simulated, faults=(replace(fault, when=when),))
    steps = tuple(range(first, begins + num_with + num_after))
    return replace(plan, simulated=simulated, steps=steps), range(begins, begins + num_with)


def _step_s(simulated: SimulatedJob, first: int) -> float:
    return float(np.median(step_times(simulated, range(first, first + WINDOW_STEPS))))


def _num_steps(min_windows: int, steps: float) -> int:
    windows = max(min_windows, math.ceil(min(steps, _MAX_STEPS) / WINDOW_STEPS))
    return windows * WINDOW_STEPS


def _step(event: AlertEvent) -> int:
    return int((event.detail.window_id or "0-0").partition("-")[2])


def _is_resolved(events: RuleEvents) -> bool:
    return not any(state.phase == "firing" for state in events.left)


def _has_cause(plan: JobPlan, blame: Blame | None) -> bool:
    answers = answers_to(plan.simulated.faults[0], plan.simulated.world)
    return blame is not None and blame.cause in {answer.cause for answer in answers}


def _has_culprits(plan: JobPlan, blame: Blame | None) -> bool:
    if blame is None:
        return False
    world = plan.simulated.world
    workers = workers_of_culprits(blame.culprits, world.parallelism, world.hosts)
    return any(answer.workers == workers for answer in answers_to(plan.simulated.faults[0], world))


def try_silent_fault(plan: JobPlan, number: int) -> AlertOutcome:
    """The job with its worker silent for a while, then sending again; deterministic."""
    (fault,) = plan.simulated.faults
    first, silent_after_steps = plan.steps[0], _SILENT_AFTER_WINDOWS * WINDOW_STEPS
    begins = first + _WINDOWS_BEFORE_SILENCE * WINDOW_STEPS
    when = FaultSteps(begins, _SILENT_TIMES * silent_after_steps)
    simulated = replace(plan.simulated, faults=(replace(fault, when=when),))
    attempt = SimulatedRun(
        1,
        simulated,
        tuple(range(first, begins + (_SILENT_TIMES + _TIMES_AFTER_SILENCE) * silent_after_steps)),
    )
    step_s = float(np.median(step_times(simulated, range(first, begins))))
    silent_after_s = silent_after_steps * step_s
    with simulated_service(
        default_rules(), silent_after_s=silent_after_s, check_every_s=step_s
    ) as service:
        service.run_job([attempt], plan.habits, WINDOW_STEPS)
    outcome = AlertOutcome(number, plan.kinds[0].name, plan.what, 0.0, has_place=True)
    (culprit,) = fault.culprits(simulated.world)
    return _outcome_of_silence(outcome, service, f"dp {culprit.dp_rank}, stage {culprit.stage}")


def _outcome_of_silence(
    outcome: AlertOutcome, service: SimulatedService, name: str
) -> AlertOutcome:
    own = [event for event in service.transitions if event.rule == SILENT_RULE]
    fired = next((event for event in own if event.kind == "firing"), None)
    others = (
        each for each in service.transitions if each.kind == "firing" and each.rule != SILENT_RULE
    )
    if fired is None:
        return outcome
    names = fired.detail.names
    return replace(
        outcome,
        is_alerted=fired.sentence in service.delivered,
        rule=SILENT_RULE,
        sentence=fired.sentence,
        is_cause_right=True,
        is_culprit_right=len(names) == 1 and f"({name})" in names[0],
        is_resolved=own[-1].kind == "resolved",
        early=tuple(event.sentence for event in others),
    )


def verdict_of_faults(outcomes: Collection[AlertOutcome]) -> dict[str, Any]:
    """Counts, and under "wrong" everything that misses a bar."""
    found = [each for each in outcomes if each.counts]
    placed = [each for each in found if each.has_place]
    return {
        "jobs": len(outcomes),
        "counted": len(found),
        "alerted": sum(each.is_alerted for each in found),
        "cause_right": sum(each.is_cause_right for each in found),
        "placed": len(placed),
        "culprit_right": sum(each.is_culprit_right for each in placed),
        "resolved": sum(each.is_resolved for each in found),
        "told": sum(each.miss is None for each in found),
        "told_at_first": sum(each.missed_at_first is None and each.miss is None for each in found),
        "missed_at_first": [asdict(each) for each in found if each.missed_at_first],
        "early": sum(bool(each.early) for each in found),
        "wrong": [
            *(asdict(each) for each in found if each.is_wrong),
            *_below_minimum(found, placed),
        ],
        "unsure": [asdict(each) for each in found if each.is_unsure and not each.is_wrong],
    }


def _below_minimum(found: Sequence[AlertOutcome], placed: Sequence[AlertOutcome]) -> list[str]:
    """Shares below their bar, or why the run proves nothing."""
    if not found:
        return ["vacuous: no fault costs enough to be told"]
    named = (
        ("cause", [each.is_cause_right for each in found], MIN_CAUSE_RIGHT),
        ("culprit", [each.is_culprit_right for each in placed], MIN_CULPRIT_RIGHT),
    )
    return [
        f"{what}: right in {sum(right)} of {len(right)} messages, less than {minimum:.0%}"
        for what, right, minimum in named
        if sum(right) < minimum * len(right)
    ]
