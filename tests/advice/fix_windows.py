"""Closed windows of simulated jobs before and after a fix, as predictions are followed in them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.advice.advise import fix_record
from app.advice.facts import Facts
from app.advice.fix import AdviceCase, Fix, NotOffered
from app.advice.outcome import Prediction, prediction_of
from app.advice.signs import FollowedWindow
from app.synth.job import SimulatedJob
from tests.advice.cases import case_of, fix_of

WINDOW_STEPS = 8


def case_at(
    job: SimulatedJob,
    first_step: int = 0,
    epoch: int = 1,
    hosts: Mapping[tuple[int, int], str] | None = None,
    facts: Facts | None = None,
) -> AdviceCase:
    """The case of a window of the job; `hosts` are those of its workers, by default its own."""
    window = job.record(range(first_step, first_step + WINDOW_STEPS)).window(epoch)
    return case_of(window if hosts is None else replace(window, hosts=hosts), facts)


def seen_window(case: AdviceCase) -> FollowedWindow:
    """The window of a case."""
    return FollowedWindow(case.replay.window, case.result)


def window_at(job: SimulatedJob, first_step: int, epoch: int = 1, **given: Any) -> FollowedWindow:
    """A window of the job, as signs are looked for in it."""
    return seen_window(case_at(job, first_step, epoch, **given))


def predicted(predict: Callable[[AdviceCase], Fix | NotOffered], case: AdviceCase) -> Prediction:
    """The prediction of a fix that is offered and can be noticed."""
    found = prediction_of(fix_record(fix_of(predict(case))), seen_window(case))
    assert found is not None
    return found
