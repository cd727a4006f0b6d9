"""One fault of the diagnosis' own generator that begins, costs enough to be told, and ends."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from app.alerts.alert import AlertEvent, Blame
from app.alerts.defaults import default_rules
from app.alerts.facts import WindowFacts
from app.cli.bench.alerts.outcome import MIN_COST, Outcome
from app.cli.bench.alerts.rung import WINDOW_STEPS, Rung, facts_of, rung
from app.cli.bench.alerts.silent_fault import tried_in_silence
from app.cli.bench.diagnosis.blame import blamed
from app.cli.bench.diagnosis.grid import kinds_of
from app.cli.bench.diagnosis.numbers import Numbered
from app.cli.bench.diagnosis.plan import Plan, planned
from app.cli.bench.diagnosis.truths import answers_to
from app.diagnosis.finding import Culprit
from app.diagnosis.warm_up import warm_up
from app.synth.faults.fault import When
from app.synth.faults.silent_worker import SilentWorker
from app.synth.life import Attempt
from app.synth.truth import StepTimes, step_times

# Windows before, with and after; and seconds with and after: one and a half, and two times what the
# usual rules ask for, since windows that nobody is to trust do not count.
_BEFORE, _WITH, _AFTER = 5, 6, 6
_WITH_S, _AFTER_S = 45.0, 120.0
_LONGER = 4
_MOST_STEPS = 1000


def is_wanted(numbered: Numbered) -> bool:
    """Whether the job has one fault."""
    return len(kinds_of(numbered.index)) == 1


def tried(numbered: Numbered) -> Outcome:
    """The job of this number, with its fault for a while; always the same.

    Windows whose figures nobody is to trust are no time of which anything is known: where these
    leave too little to tell, the fault is tried once more for longer, and the outcome says so.
    """
    warm_up()
    plan = planned(numbered)
    if plan.kinds[0].cause == SilentWorker.cause:
        return tried_in_silence(plan, numbered.number)
    found = _tried(numbered, 1)
    if not found.counts or found.miss is None:
        return found
    again = _tried(numbered, _LONGER)
    return replace(again, missed_at_first=found.miss, early=(*found.early, *again.early))


def _tried(numbered: Numbered, times: int) -> Outcome:
    plan, lasts = _episode(planned(numbered), times)
    (cost,) = StepTimes.of(plan.made, lasts).costs()
    cost = cost or 0.0
    known = Outcome(numbered.number, plan.kinds[0].name, plan.what, cost, counts=cost >= MIN_COST)
    if not known.counts:
        return known
    attempt = Attempt(1, plan.made, plan.steps)
    facts = facts_of([attempt], plan.habits)
    return _judged(known, plan, lasts, facts)


def _judged(known: Outcome, plan: Plan, lasts: range, facts: list[WindowFacts]) -> Outcome:
    seen = rung(facts, default_rules())
    early = [event for event in seen.firing if _step(event) + WINDOW_STEPS <= lasts.start]
    told = [event for event in seen.firing if event not in early]
    best = told[0] if told else None
    blame = None if best is None else best.detail.blame
    return replace(
        known,
        is_alerted=bool(told),
        rule=None if best is None else best.rule,
        sentence=None if best is None else best.sentence,
        is_cause_right=_has_cause(plan, blame),
        has_place=plan.kinds[0].has_place,
        is_culprit_right=_has_place(plan, blame),
        is_resolved=_is_resolved(seen),
        early=tuple(event.sentence for event in early),
    )


def _episode(plan: Plan, times: int) -> tuple[Plan, range]:
    """The job with its fault for some windows, and the steps of these."""
    fault, first = plan.made.faults[0], plan.steps[0]
    begins = first + _BEFORE * WINDOW_STEPS
    probe = replace(plan.made, faults=(replace(fault, when=When(begins, WINDOW_STEPS)),))
    slow_s = _step_s(probe, begins)
    num_with = _num_steps(_WITH * times, times * _WITH_S / slow_s)
    num_after = _num_steps(_AFTER * times, times * _AFTER_S / _step_s(probe, begins - WINDOW_STEPS))
    when = When(begins, num_with)
    made = replace(plan.made, faults=(replace(fault, when=when),))
    steps = tuple(range(first, begins + num_with + num_after))
    return replace(plan, made=made, steps=steps), range(begins, begins + num_with)


def _step_s(made: Any, first: int) -> float:
    return float(np.median(step_times(made, range(first, first + WINDOW_STEPS))))


def _num_steps(least_windows: int, steps: float) -> int:
    windows = max(least_windows, math.ceil(min(steps, _MOST_STEPS) / WINDOW_STEPS))
    return windows * WINDOW_STEPS


def _step(event: AlertEvent) -> int:
    return int((event.detail.window_id or "0-0").partition("-")[2])


def _is_resolved(seen: Rung) -> bool:
    return not any(state.phase == "firing" for state in seen.left)


def _has_cause(plan: Plan, blame: Blame | None) -> bool:
    answers = answers_to(plan.made.faults[0], plan.made.world)
    return blame is not None and blame.cause in {answer.cause for answer in answers}


def _has_place(plan: Plan, blame: Blame | None) -> bool:
    if blame is None:
        return False
    world = plan.made.world
    culprits = [Culprit(**each) for each in blame.culprits]
    workers = blamed(culprits, world.parallelism, world.hosts)
    return any(answer.workers == workers for answer in answers_to(plan.made.faults[0], world))
