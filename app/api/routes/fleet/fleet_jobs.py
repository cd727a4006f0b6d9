"""Jobs of the fleet: state, loss, onset and causes; filtered, sorted, paged and summed."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import Field

from app import formatting
from app.api.http.fields import ResponseModel
from app.api.service.job_state import ENDED_STATES, JobState, job_state, silent_for_s, state_since_s
from app.charts.fleet.headline import FleetFacts, LosingJob, fleet_headline
from app.errors import InvalidRequest
from app.result.brief import FindingBrief
from app.result.figures import gpu_time_wasted
from app.result.join import leading
from app.store.as_of import AsOf, Processed
from app.store.database import JobId, from_cursor, to_cursor
from app.store.fleet import FleetLine, LossSum
from app.trace.exits import end_sentence
from app.trace.job import job_of

HOURS_A_DAY = 24.0

# States in which the newest figures are current.
MEASURED_STATES: tuple[JobState, ...] = ("healthy", "straggling")
LOSING_STATES: tuple[JobState, ...] = ("straggling", "stalled")
_DIAGNOSED_STATES: tuple[JobState, ...] = (*MEASURED_STATES, "low-fidelity", *ENDED_STATES)


class FleetJob(NamedTuple):
    """A job's stored line and its current state.

    `lost_per_hour`: GPU-hours lost per hour now, None if not measured. `since_s`: Unix time of the
    onset, or since when it is stalled, silent or unknown; `lasted_s`: seconds from then on, up to
    the newest step with figures or to now. All of it is processed up to `as_of`.
    """

    line: FleetLine
    state: JobState
    lost_per_hour: float | None
    since_s: float | None
    since_step: int | None
    lasted_s: float | None = None
    as_of: AsOf = AsOf(None)

    @property
    def findings(self) -> Sequence[FindingBrief] | None:
        """Its costliest causes; None if they are withheld, outdated or not known."""
        brief = self.line.brief
        return brief.findings if brief and self.state in _DIAGNOSED_STATES else None

    @property
    def slowdown(self) -> float | None:
        """The recent slowdown; None if unknown or not reliable."""
        recent = self.line.recent
        return None if recent is None or recent.verdict == "low" else recent.slowdown

    @property
    def causes(self) -> list[str]:
        """Names of the causes, the costliest first."""
        return [finding.cause for finding in self.findings or ()]

    @property
    def lost_per_day(self) -> float | None:
        """GPU-hours lost per day at the current rate."""
        return None if self.lost_per_hour is None else HOURS_A_DAY * self.lost_per_hour


def fleet_jobs(
    lines: Iterable[FleetLine], *, now_s: float, alert_slowdown: float, processed: Processed
) -> list[FleetJob]:
    """Jobs of these lines with their states."""
    return [
        _fleet_job(line, job_state(line, processed, alert_slowdown), processed, now_s)
        for line in lines
    ]


def job_missing_data_text(job: FleetJob, now_s: float) -> str | None:
    """Text on a job's missing data, or what ended it; None if data arrives or all went well."""
    line = job.line
    match job.state:
        case "silent":
            return f"{formatting.plural(len(line.silent_ranks or ()), 'rank')} silent"
        case "stalled":
            return f"no data for {formatting.duration(silent_for_s(line, now_s) or 0.0)}"
        case "unknown":
            return f"not processed for {formatting.duration(job.as_of.behind_s)}"
        case "crashed" | "preempted" if line.end_cause:
            return f"{job.state}: {end_sentence(line.end_cause)}"
    return None


def _fleet_job(line: FleetLine, state: JobState, processed: Processed, now_s: float) -> FleetJob:
    began_s, step = state_since_s(line, state, processed), line.last_step
    until_s: float | None = now_s
    if state in _DIAGNOSED_STATES:
        # Since the onset of the costliest cause.
        brief = line.brief
        first = leading(brief.findings) if brief else None
        began_s, step = (brief.onset_at_s, first.onset_step) if brief and first else (None, None)
        until_s = brief.ended_s if brief else None
    lasted_s = None if began_s is None or until_s is None else max(0.0, until_s - began_s)
    lost = _lost_per_hour(line, state)
    progress = processed.of(line.job_id, line.last_data_s)
    return FleetJob(line, state, lost, began_s, step, lasted_s, progress)


def _lost_per_hour(line: FleetLine, state: JobState) -> float | None:
    if state == "stalled":
        return float(line.num_gpus)
    recent = line.recent if state in MEASURED_STATES else None
    slowdown = None if recent is None else recent.slowdown
    return None if slowdown is None else line.num_gpus * gpu_time_wasted(slowdown)


Order = Literal["lost", "slowdown", "gpus", "name", "since", "state"]
Direction = Literal["asc", "desc"]

# Most severe first.
_STATES_BY_SEVERITY: tuple[JobState, ...] = (
    "crashed",
    "stalled",
    "straggling",
    "silent",
    "unknown",
    "low-fidelity",
    "not-analysed",
    "healthy",
    "preempted",
    "finished",
)
_ASCENDING_ORDERS: tuple[Order, ...] = ("name", "state")
# In the order by loss jobs in these states come first: one loses all of its GPUs, what the other
# loses is not measured. The number is higher, the earlier they come.
_SEEN_FIRST: dict[JobState, float] = {"stalled": 2.0, "silent": 1.0}
_SortValue = tuple[float, float, str]


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Filters of the list; all given ones must match.

    `text` is searched in job ids and names, labels ("owner=team-a"), framework, causes and hosts;
    `on_host` are keys of jobs that have, or had, a host whose name starts with it.
    """

    text: str = ""
    on_host: frozenset[str] = frozenset()
    state: JobState | None = None
    cause: str | None = None

    def matches(self, job: FleetJob) -> bool:
        """Whether the job matches."""
        if self.state is not None and job.state != self.state:
            return False
        if self.cause is not None and self.cause not in job.causes:
            return False
        text = self.text.strip().casefold()
        if not text or job.line.job_id in self.on_host:
            return True
        return any(text in searched.casefold() for searched in _searched_texts(job))


def sort_jobs(
    listed: Iterable[FleetJob], order: Order, direction: Direction | None
) -> list[FleetJob]:
    """The sorted jobs, equal ones by id; jobs without a value come last.

    By loss, stalled jobs come before those with silent ranks, and both before all others.
    States always sort the most severe first, whatever the direction; then by name.
    """
    return sorted(listed, key=lambda job: _sort_key(job, order, direction))


def page_of_jobs(
    ordered: Sequence[FleetJob],
    order: Order,
    direction: Direction | None,
    *,
    cursor: str | None,
    limit: int,
) -> tuple[Sequence[FleetJob], str | None]:
    """The jobs after the cursor's, and the next cursor.

    A cursor holds the sort value that its job had: the page starts there, wherever that job is by
    now.
    """
    first = 0
    if cursor is not None:
        last = from_cursor(cursor, _Cursor)
        if (last.order, last.direction) != (order, direction):
            raise InvalidRequest("the cursor is one of another order")
        after = _key_of_value(last.is_known, last.value, last.job, order, direction)
        first = bisect_right(ordered, after, key=lambda job: _sort_key(job, order, direction))
    part = ordered[first : first + limit]
    if first + limit >= len(ordered):
        return part, None
    value = _value_or_fallback(part[-1], order)
    return part, to_cursor(order, direction, *value, job_of(part[-1].line.job_id))


class _Cursor(NamedTuple):
    order: Order
    direction: Direction | None
    is_known: bool
    value: _SortValue
    job: JobId


@dataclass(frozen=True, slots=True)
class _Descending:
    """Sorts in descending order."""

    value: _SortValue

    def __lt__(self, other: "_Descending") -> bool:
        return other.value < self.value


def _sort_key(job: FleetJob, order: Order, direction: Direction | None) -> tuple[Any, ...]:
    return _key_of_value(*_value_or_fallback(job, order), job_of(job.line.job_id), order, direction)


def _key_of_value(
    is_known: bool, value: _SortValue, job: str, order: Order, direction: Direction | None
) -> tuple[Any, ...]:
    if not is_known:
        return (True, value, job)
    is_down = (direction or ("asc" if order in _ASCENDING_ORDERS else "desc")) == "desc"
    return (False, _Descending(value) if is_down else value, job)


def _value_or_fallback(job: FleetJob, order: Order) -> tuple[bool, _SortValue]:
    """Whether the job has a sort value, and that or a fallback."""
    value = _sort_value(job, order)
    if value is not None:
        return True, value
    return False, (0.0, float(_STATES_BY_SEVERITY.index(job.state)), job.line.name.casefold())


def _sort_value(job: FleetJob, order: Order) -> _SortValue | None:
    """The job's sort value, as two numbers and a text; None if unknown."""
    match order:
        case "name":
            return 0.0, 0.0, job.line.name.casefold()
        case "state":
            return 0.0, float(_STATES_BY_SEVERITY.index(job.state)), ""
        case "gpus":
            return 0.0, float(job.line.num_gpus), ""
        case "lost" if job.state in _SEEN_FIRST:
            return _SEEN_FIRST[job.state], float(job.line.num_gpus), ""
    number = {"lost": job.lost_per_hour, "slowdown": job.slowdown, "since": job.since_s}[order]
    return None if number is None else (0.0, number, "")


def _searched_texts(job: FleetJob) -> Iterable[str]:
    line = job.line
    yield from (job_of(line.job_id), line.name, line.framework or "")
    yield from (f"{name}={text}" for name, text in line.labels.items())
    for finding in job.findings or ():
        yield finding.cause.replace("-", " ")
        yield from (culprit.host or "" for culprit in finding.culprits)


DAY_S = 86_400.0


class FleetSummaryOut(ResponseModel):
    """Figures of the project's active jobs; hours are GPU-hours, today's since midnight UTC."""

    jobs: int
    running: int
    gpus: int = Field(description="GPUs of all jobs that have not finished.")
    gpus_measured: int = Field(
        description="GPUs of jobs with current figures (state healthy or straggling). Jobs that "
        "report, but have low fidelity or are not analysed yet, are not counted."
    )
    gpu_hours_lost_today: float = Field(
        description="GPU-hours lost to stragglers today, from closed windows, as in the charts."
    )
    gpu_hours_today: float = Field(description="GPU-hours that today's closed windows cover.")
    gpu_hours_stalled_today: float = Field(
        description="GPU-hours lost today by jobs that are stalled now; not part of "
        "`gpu_hours_lost_today`."
    )
    lost_per_hour: float = Field(description="GPU-hours lost per hour at the current rate.")
    lost_per_hour_stalled: float = Field(
        description="The part of `lost_per_hour` that stalled jobs lose: all of their GPUs."
    )
    by_state: dict[str, int]
    by_cause: dict[str, int]
    alerts_firing: int = Field(
        description="Firing alerts that notify somebody: neither silenced nor inhibited."
    )
    alerts_new_last_hour: int
    archived: int = Field(
        description="Number of archived jobs. Of the other figures, only the hours lost today "
        "contain theirs."
    )
    deleted: int = Field(description="Number of deleted jobs that can still be restored.")
    sentence: str
    sub: str


def midnight_s(now_s: float) -> float:
    """Unix time of the last midnight (UTC)."""
    return now_s - now_s % DAY_S


def fleet_summary(
    fleet: Sequence[FleetJob],
    lost_today: LossSum,
    *,
    now_s: float,
    alert_slowdown: float,
    **counts: int,
) -> FleetSummaryOut:
    """Figures of these jobs; `lost_today` is the loss in today's windows, `counts` all others."""
    running = [job for job in fleet if job.state not in ENDED_STATES]
    measured = [job for job in running if job.state in MEASURED_STATES]
    stalled = [job for job in running if job.state == "stalled"]
    stalled_s = sum(_stalled_gpu_s(job, now_s) for job in stalled)
    by_cause = Counter(cause for job in fleet for cause in set(job.causes))
    sentence, sub = fleet_headline(_headline_fleet(fleet, len(measured), now_s, alert_slowdown))
    return FleetSummaryOut(
        jobs=len(fleet),
        running=len(running),
        gpus=sum(job.line.num_gpus for job in running),
        gpus_measured=sum(job.line.num_gpus for job in measured),
        gpu_hours_lost_today=lost_today.gpu_s / 3600,
        gpu_hours_today=lost_today.gpu_s_recorded / 3600,
        gpu_hours_stalled_today=stalled_s / 3600,
        lost_per_hour=sum(job.lost_per_hour or 0.0 for job in running),
        lost_per_hour_stalled=sum(job.lost_per_hour or 0.0 for job in stalled),
        by_state=dict(Counter(job.state for job in fleet)),
        by_cause=dict(sorted(by_cause.items(), key=lambda pair: (-pair[1], pair[0]))),
        sentence=sentence,
        sub=sub,
        **counts,
    )


def _stalled_gpu_s(job: FleetJob, now_s: float) -> float:
    """GPU-seconds of today since the job stalled."""
    if job.since_s is None:
        return 0.0
    return job.line.num_gpus * max(0.0, now_s - max(job.since_s, midnight_s(now_s)))


def _since_words(job: FleetJob, now_s: float) -> str:
    if job.since_step is None or job.state == "stalled":
        return ""
    return formatting.since_words(job.since_step, job.since_s, job.lasted_s, now_s=now_s)


def _headline_fleet(
    fleet: Sequence[FleetJob], num_measured: int, now_s: float, alert_slowdown: float
) -> FleetFacts:
    losing = [
        LosingJob(
            job.line.name,
            job.lost_per_day or 0.0,
            is_stalled=job.state == "stalled",
            silent_s=silent_for_s(job.line, now_s) or 0.0,
            finding=leading(job.findings),
            num_stages=job.line.pp_size,
            since=_since_words(job, now_s),
        )
        for job in fleet
        if job.state in LOSING_STATES
    ]
    losing.sort(key=lambda job: -job.lost_per_day)
    num_silent = sum(job.state == "silent" for job in fleet)
    return FleetFacts(len(fleet), num_measured, losing, alert_slowdown, num_silent)
