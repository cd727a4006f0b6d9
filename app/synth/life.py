"""A job that is started again: after a crash, or with another number of replicas."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from app.errors import InvalidRequest
from app.synth.run import MadeJob


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the job: its epoch, from 1, and the steps that it trained."""

    epoch: int
    made: MadeJob
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event(ABC):
    """The job ends before `at_step`, and starts again `lost_steps` before, from a checkpoint.

    Nothing of it is to be named as a cause.
    """

    name: ClassVar[str]
    cause: ClassVar[None] = None

    at_step: int
    lost_steps: int = 0

    def __post_init__(self) -> None:
        if self.lost_steps < 0:
            raise InvalidRequest(f"{self.lost_steps} lost steps: give 0 or more")

    @abstractmethod
    def restarted(self, made: MadeJob) -> MadeJob:
        """The job as it goes on."""


@dataclass(frozen=True, slots=True)
class Restart(Event):
    """The job crashes and starts again as it was."""

    name = "restart"

    @override
    def restarted(self, made: MadeJob) -> MadeJob:
        return _again(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Event):
    """The job starts again with another number of replicas."""

    name = "resize"

    dp_size: int

    @override
    def restarted(self, made: MadeJob) -> MadeJob:
        parallelism = replace(made.parallelism, dp_size=self.dp_size)
        return _again(replace(made, parallelism=parallelism))


EVENTS: dict[str, type[Event]] = {event.name: event for event in (Restart, Resize)}


def lived(made: MadeJob, steps: Sequence[int], events: Sequence[Event]) -> list[Attempt]:
    """The job's attempts, one more than events; steps that were lost are trained again.

    Raises:
        InvalidRequest: an event is at none of the steps, or the job that goes on lacks a place
            that a fault is in.
    """
    attempts = started_again(made, steps, events)
    for attempt in attempts:
        for fault in attempt.made.faults:
            fault.check(attempt.made.world)
    return attempts


def started_again(made: MadeJob, steps: Sequence[int], events: Sequence[Event]) -> list[Attempt]:
    """The same, before anybody has looked whether faults have a place in each of them.

    Raises:
        InvalidRequest: an event is at none of the steps.
    """
    attempts = [Attempt(1, made, tuple(steps))]
    for event in sorted(events, key=lambda each: each.at_step):
        attempts[-1:] = _split(attempts[-1], event)
    return attempts


def _split(attempt: Attempt, event: Event) -> list[Attempt]:
    before = tuple(step for step in attempt.steps if step < event.at_step)
    since = event.at_step - event.lost_steps
    after = tuple(step for step in attempt.steps if step >= since)
    if not before or not any(step >= event.at_step for step in attempt.steps):
        raise InvalidRequest(
            f"a {event.name} at step {event.at_step}: the job has steps {attempt.steps[0]} to "
            f"{attempt.steps[-1]} then, and wants one before and one after"
        )
    again = event.restarted(attempt.made)
    # Kernels are compiled anew.
    again = replace(again, odd_steps=replace(again.odd_steps, first_step=after[0]))
    return [replace(attempt, steps=before), Attempt(attempt.epoch + 1, again, after)]


def _again(made: MadeJob) -> MadeJob:
    # A step that is trained again does not take what it took.
    return replace(made, seed=made.seed + 1)
