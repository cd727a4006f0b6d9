"""All that rules can be on, and where a rule that does not say so begins and ceases to hold."""

from dataclasses import replace
from fnmatch import fnmatchcase

from app.alerts.alert import AlertState
from app.alerts.readings.cause import Cause
from app.alerts.readings.clock_residual import ClockResidual
from app.alerts.readings.figure import Figure
from app.alerts.readings.gpu_hours_lost import GpuHoursLost
from app.alerts.readings.host import Host
from app.alerts.readings.low_fidelity import LowFidelity
from app.alerts.readings.optype import OpType
from app.alerts.readings.quiet import Quiet
from app.alerts.readings.silent_worker import SilentWorker
from app.alerts.readings.slowdown import Slowdown
from app.alerts.readings.stalled import Stalled
from app.alerts.readings.step_time import StepTime
from app.alerts.readings.waste import Waste
from app.alerts.readings.worker import Worker
from app.alerts.rule import On, Rule

FIGURES: dict[On, Figure] = {
    figure.on: figure
    for figure in (
        Slowdown(),
        Waste(),
        GpuHoursLost(),
        Cause(),
        Worker(),
        Host(),
        OpType(),
        LowFidelity(),
        ClockResidual(),
        StepTime(),
    )
}
QUIETS: dict[On, Quiet] = {quiet.on: quiet for quiet in (Stalled(), SilentWorker())}


def has_subjects(rule: Rule) -> bool:
    """Whether the rule has an alert for each of several subjects, and not one for the job."""
    return rule.on in FIGURES and FIGURES[rule.on].has_subjects


def has_made(rule: Rule | None, state: AlertState) -> bool:
    """Whether an alert such as this is the rule's: on the same, and of whom its `of` chooses."""
    if rule is None or state.detail.on not in (None, rule.on):
        return False
    return not has_subjects(rule) or fnmatchcase(state.subject, rule.of)


def whole(rule: Rule) -> Rule:
    """The rule with its thresholds, the usual ones where it does not name them.

    It clears in the middle between what raises it and where all is well, or below: never at once
    at a value that has just raised it.
    """
    figure = FIGURES.get(rule.on)
    if figure is None:
        return rule
    above = figure.usual_above if rule.above is None else rule.above
    if rule.clear is not None or above is None:
        return replace(rule, above=above)
    clear = above if figure.is_exact else (figure.rest + above) / 2
    if figure.usual_clear is not None:
        clear = min(clear, figure.usual_clear)
    return replace(rule, above=above, clear=clear)
