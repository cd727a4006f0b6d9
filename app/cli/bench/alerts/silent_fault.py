"""A worker that falls silent and comes again: it costs no time, and is known by the clock alone."""

from dataclasses import replace

import numpy as np

from app.alerts.defaults import default_rules
from app.cli.bench.alerts.night import Night, night
from app.cli.bench.alerts.outcome import Outcome
from app.cli.bench.alerts.rung import WINDOW_STEPS
from app.cli.bench.diagnosis.plan import Plan
from app.synth.faults.fault import When
from app.synth.life import Attempt
from app.synth.truth import step_times

RULE = "silent-worker"
_BEFORE = 2  # windows
# Made steps are short: whoever is silent for so many windows has fallen silent.
_PATIENCE_WINDOWS = 3
_WITH, _AFTER = 3, 2  # times as long


def tried_in_silence(plan: Plan, number: int) -> Outcome:
    """The job with its worker silent for a while, and then heard again; always the same."""
    (fault,) = plan.made.faults
    first, patience = plan.steps[0], _PATIENCE_WINDOWS * WINDOW_STEPS
    begins = first + _BEFORE * WINDOW_STEPS
    when = When(begins, _WITH * patience)
    made = replace(plan.made, faults=(replace(fault, when=when),))
    attempt = Attempt(1, made, tuple(range(first, begins + (_WITH + _AFTER) * patience)))
    step_s = float(np.median(step_times(made, range(first, begins))))
    patience_s = patience * step_s
    with night(default_rules(), silent_after_s=patience_s, look_every_s=step_s) as watch:
        watch.live([attempt], plan.habits, WINDOW_STEPS)
    known = Outcome(number, plan.kinds[0].name, plan.what, 0.0, has_place=True)
    (culprit,) = fault.culprits(made.world)
    return _judged(known, watch, f"dp {culprit.dp_rank}, stage {culprit.stage}")


def _judged(known: Outcome, watch: Night, name: str) -> Outcome:
    mine = [event for event in watch.rang if event.rule == RULE]
    fired = next((event for event in mine if event.kind == "firing"), None)
    others = (each for each in watch.rang if each.kind == "firing" and each.rule != RULE)
    if fired is None:
        return known
    names = fired.detail.names
    return replace(
        known,
        is_alerted=fired.sentence in watch.told,
        rule=RULE,
        sentence=fired.sentence,
        is_cause_right=True,
        is_culprit_right=len(names) == 1 and names[0].startswith(name),
        is_resolved=mine[-1].kind == "resolved",
        early=tuple(event.sentence for event in others),
    )
