"""The fleet: one line per job for its current run, and the GPU time lost over time.

A brief is a window's part of such a line, stored so that its whole result need not be read. Losses
of closed windows are stored by cause, operation type and host, and summed up by the database.
Windows of low fidelity have no losses: their figures cannot be trusted.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import Column, ColumnElement, Connection, Text, delete, func, select, type_coerce

from app import formatting
from app.result.brief import JobBrief
from app.result.causes import NOT_EXPLAINED, cause_of
from app.result.figures import loss_shares
from app.result.finding import Finding
from app.result.join import leading
from app.result.window_result import WindowResult, total_s
from app.store.alerting.tables import alert_events
from app.store.columns import JsonText
from app.store.database import insert_or_replace, of_run, same_run
from app.store.jobs import Lifecycle, is_in
from app.store.projects import is_kept, owns
from app.store.tables import jobs, runs, steps, window_briefs, window_losses, windows
from app.store.windows import (
    SUMMARY_COLUMNS,
    RecentSummary,
    WindowRecord,
    WindowSummary,
    newest_with_figures,
    recent_summary,
    step_starts,
    summary_of,
)
from app.trace.exits import EndCause, EndedAs

SHOWN_WINDOWS = 48


class FleetLine(NamedTuple):
    """A job and its current run.

    `latest` is that run's newest closed window with figures, or its open one before the first.
    `brief` is of the steps that the job is judged by, None before the first figures.
    A tuple, for speed: one is made per job at each request for the fleet.
    """

    job_id: str
    name: str
    dp_size: int
    pp_size: int
    tp_size: int
    vpp_size: int
    dsp_size: int
    ep_size: int
    num_gpus: int
    framework: str | None
    labels: dict[str, str]
    epoch: int
    registered_s: float
    ended_s: float | None
    last_data_s: float | None
    last_step: int | None
    silent_ranks: Sequence[int] | None
    silent_workers: Sequence[int] | None
    silent_since_s: float | None
    stalled_since_s: float | None
    ended_as: EndedAs | None
    end_cause: EndCause | None
    latest: WindowSummary | None
    brief: JobBrief | None

    @property
    def recent(self) -> RecentSummary | None:
        """The steps that the job is judged by; None before the first figures."""
        return recent_summary(self.latest, self.brief)


class RecentWindow(NamedTuple):
    """A window of a job's last ones; `slowdown` is None if it has no figures."""

    first_step: int
    last_step: int
    slowdown: float | None


_RUN_FIELDS = FleetLine._fields[:-2]  # all but the window and its brief
_LABELS = _RUN_FIELDS.index("labels")
_JSON_KINDS = {"labels": Any, "silent_ranks": Any, "silent_workers": Any, "end_cause": EndCause}
_JSON_FIELDS = [(_RUN_FIELDS.index(name), kind) for name, kind in _JSON_KINDS.items()]


# Most texts are the same at the next request: they need not be decoded again. Values are shared, so
# nobody may change them.
@lru_cache(maxsize=32_768)
def _decoded(text: str | None, kind: Any = Any) -> Any:
    return None if text is None else msgspec.json.decode(text, type=kind)


def lines(conn: Connection, project: str, lifecycle: Lifecycle = "active") -> list[FleetLine]:
    """A project's jobs by id."""
    latest = same_run(windows, jobs) & (windows.c.first_step == newest_with_figures())
    of_window = (*SUMMARY_COLUMNS, window_briefs.c.brief)
    columns = (*(runs.c[name] for name in _RUN_FIELDS), *of_window, jobs.c.edited_labels)
    query = (
        select(*map(_as_text, columns))
        .select_from(jobs.join(runs, same_run(runs, jobs)))
        .join(windows, latest, isouter=True)
        .join(window_briefs, isouter=True)
        .where(owns(project, jobs.c.job_id), is_in(lifecycle))
        .order_by(jobs.c.job_id)
    )
    return [_line(row) for row in conn.execute(query)]


def last_windows(conn: Connection, job_ids: Collection[str]) -> dict[str, list[RecentWindow]]:
    """The last windows of these jobs' current runs, oldest first; at most `SHOWN_WINDOWS` each."""
    inner = windows.alias("inner_windows")
    # Reads SHOWN_WINDOWS entries of the key's index, however long the run is.
    oldest = (
        select(inner.c.first_step)
        .where(same_run(inner, jobs))
        .order_by(inner.c.first_step.desc())
        .limit(1)
        .offset(SHOWN_WINDOWS - 1)
        .correlate(jobs)
        .scalar_subquery()
    )
    query = (
        select(jobs.c.job_id, windows.c.first_step, windows.c.last_step, windows.c.slowdown)
        .select_from(jobs.join(windows, same_run(windows, jobs)))
        .where(jobs.c.job_id.in_(sorted(job_ids)))
        .where(windows.c.first_step >= func.coalesce(oldest, 0))
        .order_by(jobs.c.job_id, windows.c.first_step)
    )
    by_job: dict[str, list[RecentWindow]] = {job_id: [] for job_id in job_ids}
    for job_id, *window in conn.execute(query):
        by_job[job_id].append(RecentWindow(*window))
    return by_job


def last_skip_reason(conn: Connection, job_id: str, epoch: int) -> str | None:
    """The skip reason of a run's last skipped step; None if no step was skipped."""
    query = (
        select(steps.c.skipped_reason)
        .where(*of_run(steps, job_id, epoch))
        .where(steps.c.skipped_reason.is_not(None))
        .order_by(steps.c.step.desc())
        .limit(1)
    )
    return conn.scalar(query)


def num_fired_since(conn: Connection, project: str, since_s: float) -> int:
    """Number of alerts of a project that began to fire since a Unix time."""
    query = select(func.count()).select_from(alert_events)
    query = query.where(owns(project, alert_events.c.job_id), alert_events.c.kind == "firing")
    return int(conn.execute(query.where(alert_events.c.at_s >= since_s)).scalar_one())


def _as_text(column: Column[Any]) -> ColumnElement[Any]:
    """The column, its JSON undecoded."""
    return type_coerce(column, Text) if isinstance(column.type, JsonText) else column


def _line(row: Sequence[Any]) -> FleetLine:
    # By position, for speed: columns of the run, of its window's summary, the brief, edited labels.
    run, window = list(row[: len(_RUN_FIELDS)]), row[len(_RUN_FIELDS) : -2]
    for at, kind in _JSON_FIELDS:
        run[at] = _decoded(run[at], kind)
    if edited := _decoded(row[-1]):
        run[_LABELS] = run[_LABELS] | edited
    latest = None if window[0] is None else summary_of(window)
    return FleetLine._make((*run, latest, _decoded(row[-2], JobBrief)))


def save_brief(
    conn: Connection, job_id: str, epoch: int, first_step: int, brief: JobBrief | None
) -> None:
    """Save the brief that the job is judged by as of a window; None removes the old one."""
    key = {"job_id": job_id, "epoch": epoch, "first_step": first_step}
    if brief is None:
        conn.execute(delete(window_briefs).filter_by(**key))
        return
    since_s = _onset_s(conn, job_id, epoch, brief)
    insert_or_replace(conn, window_briefs, [{**key, "brief": replace(brief, onset_at_s=since_s)}])


def _onset_s(conn: Connection, job_id: str, epoch: int, brief: JobBrief) -> float | None:
    """When (Unix time) the step started in which the costliest cause began; None if unknown."""
    first = leading(brief.findings)
    if first is None or (step := first.onset_step) is None:
        return None
    known_s = formatting.unix_time(first.onset_at)
    return step_starts(conn, job_id, epoch, [step]).get(step) if known_s is None else known_s


OTHER = "other"
MIN_OPTYPE_SHARE = 0.01
MAX_HOSTS = 64
_MIN_UNEXPLAINED_SHARE = 1e-6  # less is a rounding error
_SLOWDOWN_FIELDS = ("slowdowns_against_peers", "slowdowns_against_itself")


@dataclass(frozen=True, slots=True)
class Loss:
    """GPU-seconds lost; `kind` and `name` as in the table `window_losses`."""

    kind: str
    name: str
    gpu_s: float
    gpu_s_recorded: float | None = None
    slowdown: float | None = None


def losses_of(result: WindowResult, *, num_gpus: int) -> list[Loss]:
    """The losses of a window's result (docs/glossary.md); none for low fidelity.

    Shares of causes overlap; the loss minus all of them is unexplained. Without a diagnosis, all
    of it is.
    """
    if result.slowdown is None or result.fidelity.verdict != "ok":
        return []
    recorded = total_s(result, "recorded") * num_gpus
    lost = max(0.0, 3600 * (result.gpu_hours_lost or 0.0))
    findings = result.findings or ()
    return [
        Loss("total", "", lost, recorded, result.slowdown),
        *_losses_by_cause(findings, recorded, lost),
        *_losses_by_optype(loss_shares(result.optype_slowdown), lost),
        *_losses_by_host(findings, recorded),
    ]


def save_losses(conn: Connection, job_id: str, record: WindowRecord, losses: Sequence[Loss], *,
         num_gpus: int) -> None:  # fmt: skip
    """Save a closed window's losses, replacing those of older revisions."""
    key = {"job_id": job_id, "epoch": record.epoch, "first_step": record.first_step}
    conn.execute(delete(window_losses).filter_by(**key))
    same = {**key, "updated_s": record.updated_s, "num_gpus": num_gpus}
    insert_or_replace(conn, window_losses, [{**same, **asdict(loss)} for loss in losses])


def _losses_by_cause(findings: Sequence[Finding], recorded: float, lost: float) -> list[Loss]:
    by_cause: dict[str, float] = defaultdict(float)
    for finding in findings:
        if finding.cost is not None and finding.cost > 0:
            by_cause[finding.cause] += finding.cost * recorded
    left = lost - sum(by_cause.values())
    if left > _MIN_UNEXPLAINED_SHARE * lost:
        by_cause[NOT_EXPLAINED] = left
    return [Loss("cause", cause, gpu_s) for cause, gpu_s in by_cause.items()]


def _losses_by_optype(shares: Mapping[str, float | None], lost: float) -> list[Loss]:
    """Losses by type; small ones are one row, to save rows."""
    large = {name: share for name, share in shares.items() if share and share >= MIN_OPTYPE_SHARE}
    small = sum(share for name, share in shares.items() if share and name not in large)
    listed = large | ({OTHER: small} if small else {})
    return [Loss("optype", name, lost * share) for name, share in listed.items()]


def _losses_by_host(findings: Sequence[Finding], recorded: float) -> list[Loss]:
    """Each finding's cost in equal parts to its hosts; none for rotating culprits."""
    losses: dict[str, Loss] = {}
    for finding in findings:
        if not cause_of(finding.cause).is_in_host or finding.persistence == "rotating":
            continue
        slowdowns = _host_slowdowns(finding)
        part = max(0.0, finding.cost or 0.0) * recorded / max(1, len(slowdowns))
        for host, slowdown in slowdowns.items():
            before = losses.get(host, Loss("host", host, 0.0))
            largest = _larger(before.slowdown, slowdown)
            losses[host] = Loss("host", host, before.gpu_s + part, slowdown=largest)
    return sorted(losses.values(), key=lambda loss: -loss.gpu_s)[:MAX_HOSTS]


def _host_slowdowns(finding: Finding) -> dict[str, float | None]:
    """Slowdown of each blamed host, by its slowest worker; None if unknown."""
    evidence = finding.evidence
    ratios = next((evidence[name] for name in _SLOWDOWN_FIELDS if name in evidence), ())
    workers = map(tuple, evidence.get("workers", ()))
    by_worker: dict[Any, float] = dict(zip(workers, ratios, strict=False))
    slowdowns: dict[str, float | None] = {}
    for culprit in finding.culprits:
        if host := culprit.host:
            ratio = by_worker.pop((culprit.dp_rank, culprit.stage), None)
            slowdowns[host] = _larger(slowdowns.get(host), ratio)
    # A host that is blamed as a whole: its workers are among those without a culprit of their own.
    left = max(by_worker.values(), default=None)
    for culprit in finding.culprits:
        if culprit.host and culprit.dp_rank is None:
            slowdowns[culprit.host] = _larger(slowdowns[culprit.host], left)
    return slowdowns


def _larger(*ratios: float | None) -> float | None:
    return max((ratio for ratio in ratios if ratio is not None), default=None)


@dataclass(frozen=True, slots=True)
class LossSum:
    """GPU-seconds lost, of the GPU-seconds recorded."""

    gpu_s: float
    gpu_s_recorded: float


def loss_since(
    conn: Connection, project: str, since_s: float, before_s: float | None = None
) -> LossSum:
    """Sum over a project's windows that were revised last since a Unix time, and before another."""
    loss = window_losses.c
    query = select(func.sum(loss.gpu_s), func.sum(loss.gpu_s_recorded))
    query = query.where(*_losses_of_kind("total", project), loss.updated_s >= since_s)
    if before_s is not None:
        query = query.where(loss.updated_s < before_s)
    lost, recorded = conn.execute(query).one()
    return LossSum(lost or 0.0, recorded or 0.0)


def loss_by_job(conn: Connection, project: str, since_s: float) -> list[tuple[str, int, LossSum]]:
    """Name, GPUs and losses of each of a project's jobs since a Unix time."""
    loss = window_losses.c
    sums = (func.sum(loss.gpu_s).label("lost"), func.sum(loss.gpu_s_recorded).label("recorded"))
    of_job = (
        select(loss.job_id, *sums)
        .where(*_losses_of_kind("total", project), loss.updated_s >= since_s)
        .group_by(loss.job_id)
        .subquery()
    )
    joined = of_job.join(jobs, jobs.c.job_id == of_job.c.job_id).join(runs, same_run(runs, jobs))
    query = select(runs.c.name, runs.c.num_gpus, of_job.c.lost, of_job.c.recorded)
    rows = conn.execute(query.select_from(joined).order_by(of_job.c.job_id))
    return [(name, num_gpus, LossSum(*gpu_s)) for name, num_gpus, *gpu_s in rows]


def loss_by_name(conn: Connection, project: str, kind: str, since_s: float) -> dict[str, float]:
    """GPU-seconds lost to each cause, operation type or host since a Unix time."""
    loss = window_losses.c
    query = select(loss.name, func.sum(loss.gpu_s)).where(*_losses_of_kind(kind, project))
    query = query.where(loss.updated_s >= since_s).group_by(loss.name).order_by(loss.name)
    return dict(conn.execute(query).all())


def loss_by_interval(conn: Connection, project: str, edges_s: Sequence[float]) -> list[LossSum]:
    """The losses between each two successive Unix times, ascending."""
    return [loss_since(conn, project, *interval_s) for interval_s in pairwise(edges_s)]


def _losses_of_kind(kind: str, project: str) -> tuple[ColumnElement[bool], ...]:
    job_id = window_losses.c.job_id
    return (window_losses.c.kind == kind, owns(project, job_id), is_kept(job_id))
