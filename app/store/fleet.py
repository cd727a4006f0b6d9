"""The fleet: one line a job, as its current run has it, read at once for a whole project."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Text,
    and_,
    func,
    literal,
    select,
    type_coerce,
)

from app.store.alert_tables import alert_events, alerts
from app.store.columns import JsonText
from app.store.projects import owns
from app.store.tables import jobs, runs, steps, window_briefs, windows
from app.store.windows import SUMMARY, WindowSummary, newest_with_figures

SHOWN_WINDOWS = 48


class FleetLine(NamedTuple):
    """A job as its current run has it; `latest` is that run's newest window with figures.

    `brief` is what app/store/briefs.py says of that window, None of one from before there were
    any. A tuple, since one is made of each job whenever anybody looks at the fleet.
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
    latest: WindowSummary | None
    brief: dict[str, Any] | None


class Seen(NamedTuple):
    """One window of a job's last ones; `slowdown` is None where it has no figures."""

    first_step: int
    last_step: int
    slowdown: float | None


_OF_RUN = FleetLine._fields[:-2]  # all but the window and its brief
_JSON_AT = tuple(_OF_RUN.index(name) for name in ("labels", "silent_ranks", "silent_workers"))
# Most jobs say the same as when somebody last looked: their texts need not be read again.
_MOST_TEXTS = 4096


def lines(conn: Connection, project: str) -> list[FleetLine]:
    """A project's jobs by id."""
    return [_line(row) for row in conn.execute(_lines(project))]


def last_windows(conn: Connection, job_ids: Collection[str]) -> dict[str, list[Seen]]:
    """The last windows of these jobs' current runs, oldest first; at most `SHOWN_WINDOWS` each."""
    inner = windows.alias("inner_windows")
    # The database goes back so many entries of the key's index, however long the run is.
    oldest = (
        select(inner.c.first_step)
        .where(inner.c.job_id == jobs.c.job_id, inner.c.epoch == jobs.c.epoch)
        .order_by(inner.c.first_step.desc())
        .limit(1)
        .offset(SHOWN_WINDOWS - 1)
        .correlate(jobs)
        .scalar_subquery()
    )
    same_run = and_(windows.c.job_id == jobs.c.job_id, windows.c.epoch == jobs.c.epoch)
    query = (
        select(jobs.c.job_id, windows.c.first_step, windows.c.last_step, windows.c.slowdown)
        .select_from(jobs.join(windows, same_run))
        .where(jobs.c.job_id.in_(sorted(job_ids)))
        .where(windows.c.first_step >= func.coalesce(oldest, literal(0)))
        .order_by(jobs.c.job_id, windows.c.first_step)
    )
    found: dict[str, list[Seen]] = {job_id: [] for job_id in job_ids}
    for job_id, *window in conn.execute(query):
        found[job_id].append(Seen(*window))
    return found


def why_skipped(conn: Connection, job_id: str, epoch: int) -> str | None:
    """Why the last step of a run that was skipped was; None where none was."""
    query = (
        select(steps.c.skipped_reason)
        .where(steps.c.job_id == job_id, steps.c.epoch == epoch)
        .where(steps.c.skipped_reason.is_not(None))
        .order_by(steps.c.step.desc())
        .limit(1)
    )
    found: str | None = conn.execute(query).scalar_one_or_none()
    return found


def num_firing(conn: Connection, project: str) -> int:
    """How many alerts of a project fire now."""
    query = select(func.count()).where(owns(project, alerts.c.job_id), alerts.c.phase == "firing")
    return int(conn.execute(query).scalar_one())


def num_fired_since(conn: Connection, project: str, since_s: float) -> int:
    """How many alerts of a project began to fire since a moment (Unix time)."""
    query = select(func.count()).select_from(alert_events)
    query = query.where(owns(project, alert_events.c.job_id), alert_events.c.kind == "firing")
    return int(conn.execute(query.where(alert_events.c.at_s >= since_s)).scalar_one())


def _lines(project: str) -> Select[Any]:
    current = and_(runs.c.job_id == jobs.c.job_id, runs.c.epoch == jobs.c.epoch)
    of_run = and_(windows.c.job_id == jobs.c.job_id, windows.c.epoch == jobs.c.epoch)
    same = [window_briefs.c[key] == windows.c[key] for key in ("job_id", "epoch", "first_step")]
    return (
        select(
            *map(_as_text, (*(runs.c[name] for name in _OF_RUN), *SUMMARY, window_briefs.c.brief))
        )
        .select_from(jobs.join(runs, current))
        .join(windows, and_(of_run, windows.c.first_step == newest_with_figures()), isouter=True)
        .join(window_briefs, and_(*same), isouter=True)
        .where(owns(project, jobs.c.job_id))
        .order_by(jobs.c.job_id)
    )


def _as_text(column: Column[Any]) -> ColumnElement[Any]:
    """The column, its JSON as it is written."""
    return type_coerce(column, Text) if isinstance(column.type, JsonText) else column


def _line(row: Sequence[Any]) -> FleetLine:
    # By place, for speed: the columns are those of the run, of its window's summary, the brief.
    of_run, window = list(row[: len(_OF_RUN)]), row[len(_OF_RUN) : -1]
    for at in _JSON_AT:
        of_run[at] = _value(of_run[at])
    epoch, first_step = window[:2]
    latest = None if epoch is None else WindowSummary(f"{epoch}-{first_step}", *window)
    return FleetLine._make((*of_run, latest, _value(row[-1])))


@lru_cache(_MOST_TEXTS)
def _value(json: str | None) -> Any:
    """What is written there, which nobody may change: others may have it, too."""
    return None if json is None else msgspec.json.decode(json)
