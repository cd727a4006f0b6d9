"""What people would hear of one job's alerts: not those for which another one speaks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.alerts.alert import AlertEvent, AlertState
from app.alerts.changes import Change
from app.alerts.inhibition import inhibited
from app.alerts.rule import Rule


class Hearing:
    """Beginnings and ends that would be `told`, by these rules, in their order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._waiting: dict[str, AlertEvent] = {}
        self.told: list[AlertEvent] = []
        self._num_missed: Counter[str] = Counter()

    @property
    def num_kept_back(self) -> Counter[str]:
        """By rule, alerts that fired and were over before they could be told, or still wait."""
        return self._num_missed + Counter(event.rule for event in self._waiting.values())

    def hear(self, changes: Iterable[Change], states: Sequence[AlertState], now_s: float) -> None:
        """After a window that made these changes, and left the alerts as they are in `states`."""
        for event in (event for change in changes for event in change.events):
            if event.kind == "firing":
                self._waiting[event.fingerprint] = event
            elif event.kind == "resolved":
                self._hear_end(event)
        quiet = inhibited(states, self._rules)
        quiet |= {state.fingerprint for state in states if state.below_s > 0}
        for fingerprint in [each for each in self._waiting if each not in quiet]:
            self.told.append(replace(self._waiting.pop(fingerprint), at_s=now_s))

    def _hear_end(self, event: AlertEvent) -> None:
        if self._waiting.pop(event.fingerprint, None) is None:
            self.told.append(event)
        else:
            self._num_missed[event.rule] += 1
