"""The headline of the fleet's page: how many jobs lose time, and what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app import formatting

HALF = 0.5


@dataclass(frozen=True, slots=True)
class LosingJob:
    """A job that loses time now, of `num_stages` stages.

    `silent_s` is the time since the last batch of a stalled job, `since` the onset in words.
    """

    name: str
    lost_per_day: float
    is_stalled: bool = False
    silent_s: float = 0.0
    finding: Mapping[str, Any] | None = None
    num_stages: int = 1
    since: str = ""

    @property
    def is_last_stage(self) -> bool:
        """Whether the last of several stages alone is to blame."""
        if self.finding is None or self.finding["num_culprits"] != 1 or self.num_stages == 1:
            return False
        return bool(self.finding["culprits"][0].get("stage") == self.num_stages - 1)


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Figures for the headline; `losing` is sorted by loss, largest first."""

    num_jobs: int
    num_measured: int
    losing: Sequence[LosingJob]
    limit: float


def fleet_headline(fleet: FleetFacts) -> tuple[str, str]:
    """The sentence, and the line under it; that may be empty."""
    if not fleet.num_jobs:
        return "No job has registered yet.", ""
    if not fleet.losing:
        return _nothing_lost(fleet)
    lost = sum(each.lost_per_day for each in fleet.losing)
    verb, who = ("is", "It costs") if len(fleet.losing) == 1 else ("are", "Together they cost")
    return (
        f"{formatting.count(len(fleet.losing))} of {formatting.plural(fleet.num_jobs, 'job')} "
        f"{verb} losing time. {who} {formatting.hour_count(lost)} GPU-hours a day.",
        _largest_loss(fleet.losing[0], lost, is_alone=len(fleet.losing) == 1),
    )


def _nothing_lost(fleet: FleetFacts) -> tuple[str, str]:
    if not fleet.num_measured:
        return f"{formatting.plural(fleet.num_jobs, 'job')}, none with figures now.", ""
    limit = formatting.ratio(fleet.limit)
    return "No job is losing time.", f"Every job with figures runs below {limit} of its ideal."


def _largest_loss(job: LosingJob, lost: float, *, is_alone: bool) -> str:
    text = f"{formatting.bidi_isolated(job.name)} {_reason(job)}"
    if is_alone or job.lost_per_day <= HALF * lost:
        return f"{text}."
    return f"{text}; it alone is more than half of the loss."


def _reason(job: LosingJob) -> str:
    if job.is_stalled:
        return f"has sent nothing for {formatting.duration(job.silent_s)}"
    if job.finding is None:
        return "loses most, and Paceline cannot say where"
    cause = formatting.cause_name(job.finding["cause"], is_last_stage=job.is_last_stage)
    since = f", since {job.since}" if job.since else ""
    return f"loses most: {cause}{_culprit_text(job.finding)}{since}"


def _culprit_text(finding: Mapping[str, Any]) -> str:
    if finding["num_culprits"] != 1:
        return ""
    return f", {formatting.culprit_name(finding['culprits'][0], names_unknown_host=True)}"
