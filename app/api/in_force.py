"""The settings that a page may tell its readers: no secret is among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from app.alerts.rule import Rule
from app.store.retention import Keep

RulesSource = Literal["file", "defaults"]


@dataclass(frozen=True, slots=True)
class InForce:
    """What this process was started with; what consumers go by is set the same way.

    `rules` are those of projects that have none of their own.
    """

    rules: Sequence[Rule]
    rules_source: RulesSource
    keep: Keep
    public_url: str | None
    window_steps: int
    step_deadline_s: float
    revise_for_s: float
    silent_after_s: float
    session_hours: float
    max_jobs: int


def place(url: str) -> str:
    """Scheme, host and port of an endpoint's address: enough to know it, and no secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
