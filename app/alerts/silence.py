"""Silences and maintenance windows: who is told nothing, from when until when, and who wants it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.alerts.matchers import Matcher, all_match

MAX_DAYS = 30.0
SilenceKind = Literal["silence", "maintenance"]


@dataclass(frozen=True, slots=True)
class Silence:
    """Alerts that match all `matchers` are told to nobody from `starts_s` until `ends_s` (Unix)."""

    silence_id: str
    project: str
    kind: SilenceKind
    matchers: Sequence[Matcher]
    starts_s: float
    ends_s: float
    author: str
    comment: str
    created_s: float

    def is_active(self, now_s: float) -> bool:
        """Whether it has begun and not ended."""
        return self.starts_s <= now_s < self.ends_s

    def mutes(self, labels: Mapping[str, str], now_s: float) -> bool:
        """Whether an alert of these labels is told to nobody now."""
        return self.is_active(now_s) and all_match(self.matchers, labels)
