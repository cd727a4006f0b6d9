"""The sentence that opens the fleet's page: how many jobs lose time, and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app import words
from app.charts.fleet_words import cause, hours

HALF = 0.5


@dataclass(frozen=True, slots=True)
class Losing:
    """A job that loses time now, of `num_stages` stages.

    `silent_s` is for how long nothing has come of a stalled one.
    """

    name: str
    lost_per_day: float
    is_stalled: bool = False
    silent_s: float = 0.0
    finding: dict[str, Any] | None = None
    num_stages: int = 1

    @property
    def is_last_stage(self) -> bool:
        """Whether the last of several stages alone is to blame."""
        if self.finding is None or self.finding["num_culprits"] != 1 or self.num_stages == 1:
            return False
        return bool(self.finding["culprits"][0].get("stage") == self.num_stages - 1)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the sentence is made of; `losing` has who loses most first."""

    num_jobs: int
    num_measured: int
    losing: Sequence[Losing]
    limit: float


def fleet_headline(fleet: Fleet) -> tuple[str, str]:
    """The sentence, and the line under it; that may be empty."""
    if not fleet.num_jobs:
        return "No job has registered yet.", ""
    if not fleet.losing:
        return _well(fleet)
    lost = sum(each.lost_per_day for each in fleet.losing)
    verb, who = ("is", "It costs") if len(fleet.losing) == 1 else ("are", "Together they cost")
    return (
        f"{words.whole(len(fleet.losing))} of {words.counted(fleet.num_jobs, 'job')} {verb} "
        f"losing time. {who} {hours(lost)} GPU-hours a day.",
        _first(fleet.losing[0], lost, is_alone=len(fleet.losing) == 1),
    )


def _well(fleet: Fleet) -> tuple[str, str]:
    if not fleet.num_measured:
        return f"{words.counted(fleet.num_jobs, 'job')}, none with figures now.", ""
    limit = words.ratio(fleet.limit)
    return "No job is losing time.", f"Every job with figures runs below {limit} of its ideal."


def _first(job: Losing, lost: float, *, is_alone: bool) -> str:
    said = f"{words.contained(job.name)} {_why(job)}"
    if is_alone or job.lost_per_day <= HALF * lost:
        return f"{said}."
    return f"{said}; it alone is more than half of the loss."


def _why(job: Losing) -> str:
    if job.is_stalled:
        return f"has sent nothing for {words.span(job.silent_s)}"
    if job.finding is None:
        return "loses most, and Paceline cannot say where"
    said = cause(job.finding["cause"], is_last_stage=job.is_last_stage)
    return f"loses most: {said}{_at(job.finding)}"


def _at(finding: dict[str, Any]) -> str:
    if finding["num_culprits"] != 1:
        return ""
    culprit = finding["culprits"][0]
    place = [f"{name} {culprit[key]}" for name, key in _PLACES if key in culprit]
    host = [f"on {words.contained(culprit['host'])}"] if "host" in culprit else []
    return f", {' '.join([', '.join(place), *host]).strip()}"


_PLACES = (("dp", "dp_rank"), ("stage", "stage"))
