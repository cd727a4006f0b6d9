"""All `--fault` options of a job: what they say, and whether the job has room for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.cli.simulating.fault_text import parse
from app.errors import InvalidRequest
from app.synth.faults.fault import Fault
from app.synth.life import Attempt, Event, started_again
from app.synth.run import MadeJob


@dataclass(frozen=True, slots=True)
class Typed:
    """Faults, each with its text as it was typed, and the events in a job's life."""

    texts: tuple[str, ...]
    faults: tuple[Fault, ...]
    events: tuple[Event, ...]

    def lived(self, made: MadeJob, steps: Sequence[int]) -> list[Attempt]:
        """The job's attempts, in each of which every fault has its place.

        Raises:
            InvalidRequest: one has not, or starts too late; the message says which.
        """
        attempts = started_again(made, steps, self.events)
        for text, fault in zip(self.texts, self.faults, strict=True):
            try:
                _refuse_late(fault, steps[-1])
                for attempt in attempts:
                    fault.check(attempt.made.world)
            except InvalidRequest as error:
                raise InvalidRequest(f"--fault {text}: {error}") from error
        return attempts


def typed(texts: Sequence[str]) -> Typed:
    """What the options say.

    Raises:
        InvalidRequest: one says nothing that can be made.
    """
    parsed = [(text, parse(text)) for text in texts]
    faults = [(text, each) for text, each in parsed if isinstance(each, Fault)]
    return Typed(
        texts=tuple(text for text, _ in faults),
        faults=tuple(fault for _, fault in faults),
        events=tuple(each for _, each in parsed if isinstance(each, Event)),
    )


def _refuse_late(fault: Fault, last_step: int) -> None:
    if fault.when.first_step > last_step:
        raise InvalidRequest(
            f"it starts after the last step {last_step}: give an earlier from, or more --steps"
        )
