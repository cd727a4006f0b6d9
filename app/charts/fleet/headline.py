"""The headline of the fleet's page: how many jobs lose time, and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from app import formatting
from app.result.brief import FindingBrief
from app.result.causes import cause_name

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
    finding: FindingBrief | None = None
    num_stages: int = 1
    since: str = ""

    @property
    def is_last_stage(self) -> bool:
        """Whether the last of several stages alone is to blame."""
        if self.finding is None or self.finding.num_culprits != 1 or self.num_stages == 1:
            return False
        return self.finding.culprits[0].stage == self.num_stages - 1


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Figures for the headline; `losing` is sorted by loss, largest first.

    `num_silent` are jobs with silent ranks, whose loss is not measured.
    """

    num_jobs: int
    num_measured: int
    losing: Sequence[LosingJob]
    limit: float
    num_silent: int = 0


def fleet_headline(fleet: FleetFacts) -> tuple[str, str]:
    """The sentence, and the line under it; that may be empty."""
    if not fleet.num_jobs:
        return "No job has registered yet.", ""
    if not fleet.losing:
        return _nothing_lost(fleet)
    lost = sum(job.lost_per_day for job in fleet.losing)
    num_losing, num_stalled = len(fleet.losing), sum(job.is_stalled for job in fleet.losing)
    is_alone = num_losing == 1
    verb, they = ("is", "It costs") if is_alone else ("are", "Together they cost")
    some = f"{formatting.count(num_losing)} of {formatting.plural(fleet.num_jobs, 'job')}"
    stalled = f", {num_stalled} of them stalled" if num_stalled else ""
    state = "stalled" if num_stalled == num_losing else f"losing time{stalled}"
    first = fleet.losing[0]
    is_most = not is_alone and first.lost_per_day > HALF * lost
    alone = "; it alone is more than half of the loss" if is_most else ""
    largest = f"{formatting.bidi_isolated(first.name)} {_reason(first)}{alone}."
    return (
        f"{some} {verb} {state}. {they} about {formatting.rough_hours(lost)} GPU-hours a day.",
        f"{largest} {_silent_words(fleet.num_silent)}".rstrip(),
    )


def _silent_words(num_silent: int) -> str:
    if not num_silent:
        return ""
    jobs = formatting.plural(num_silent, "job")
    has, its = ("has", "its") if num_silent == 1 else ("have", "their")
    return f"{jobs} {has} silent ranks: {its} loss is not measured."


def _nothing_lost(fleet: FleetFacts) -> tuple[str, str]:
    if not fleet.num_measured:
        jobs = formatting.plural(fleet.num_jobs, "job")
        return f"{jobs}, none with figures now.", _silent_words(fleet.num_silent)
    limit = formatting.ratio(fleet.limit)
    below = f"Every job with figures runs below {limit} of its ideal."
    if fleet.num_silent:
        return "No job is known to lose time.", f"{_silent_words(fleet.num_silent)} {below}"
    return "No job is losing time.", below


def _reason(job: LosingJob) -> str:
    if job.is_stalled:
        return f"has sent nothing for {formatting.duration(job.silent_s)}"
    if job.finding is None:
        return "loses most, and Paceline cannot say where"
    words = [cause_name(job.finding.cause, is_last_stage=job.is_last_stage)]
    if job.finding.num_culprits == 1:
        words.append(job.finding.culprits[0].name(names_unknown_host=True))
    if job.since:
        words.append(f"since {job.since}")
    return f"loses most: {', '.join(words)}"
