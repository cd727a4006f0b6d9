"""What evaluating rules did to one alert: to be saved as it is, in one transaction."""

from dataclasses import dataclass

from app.alerts.alert import AlertEvent, AlertState

# Transitions that receivers may have to be told of.
TELLING = frozenset({"firing", "resolved", "data-again"})


@dataclass(frozen=True, slots=True)
class Change:
    """The alert's next state, None once it is at rest, and its transitions, the oldest first."""

    fingerprint: str
    rule: str
    state: AlertState | None
    events: tuple[AlertEvent, ...] = ()

    @property
    def is_news(self) -> bool:
        """Whether somebody may have to be told."""
        return any(event.kind in TELLING for event in self.events)
