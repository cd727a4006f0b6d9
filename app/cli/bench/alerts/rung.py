"""What rules make of a made job's windows, one after the other as the consumer has them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.alerts.alert import AlertEvent, AlertState
from app.alerts.evaluate import Book
from app.alerts.facts import WindowFacts
from app.alerts.rule import Rule
from app.cli.bench.diagnosis.arrivals import Habits
from app.cli.bench.diagnosis.watched import watched
from app.synth.life import Attempt

WINDOW_STEPS = 8
_JOB = "default/made"


@dataclass(frozen=True, slots=True)
class Rung:
    """Every transition, and what still was pending or fired after the last window."""

    events: tuple[AlertEvent, ...]
    left: tuple[AlertState, ...]

    @property
    def firing(self) -> tuple[AlertEvent, ...]:
        """Those that rang."""
        return tuple(event for event in self.events if event.kind == "firing")


def rung(facts: Iterable[WindowFacts], rules: Sequence[Rule]) -> Rung:
    """By these rules; moments are of the event time."""
    book, now_s = Book(_JOB, rules=rules), 0.0
    events: list[AlertEvent] = []
    for each in facts:
        now_s += each.took_s
        events += (event for change in book.window(each, now_s) for event in change.events)
    return Rung(tuple(events), tuple(book.states))


def facts_of(
    attempts: Iterable[Attempt], habits: Habits | None = None, window_steps: int = WINDOW_STEPS
) -> list[WindowFacts]:
    """Of all windows of a job's runs, revised ones again."""
    return [
        seen.facts
        for attempt in attempts
        for seen in watched(attempt, window_steps, habits or Habits())
    ]
