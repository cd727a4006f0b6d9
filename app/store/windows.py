"""Windows, their steps, ranges of windows, and the ribbon over a whole job.

A window is the analysis of successive steps of one run; newer revisions replace it. Each training
step has one row, analysed or skipped.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    tuple_,
    type_coerce,
)
from sqlalchemy.sql.dml import ReturningInsert

from app.errors import InvalidRequest, WindowNotFound
from app.result.brief import JobBrief
from app.result.stored import StoredByStep, join_by_step
from app.result.window_result import Thinned, Verdict, WindowResult
from app.store.columns import PackedBytes
from app.store.database import (
    Int64,
    ListOrder,
    chunks,
    insert_in,
    insert_or_replace,
    of_run,
    same_run,
)
from app.store.runs import current_epoch
from app.store.tables import jobs, runs, steps, window_remainders, windows
from app.trace.window import WindowState

_WINDOW_KEY = (windows.c.job_id, windows.c.epoch, windows.c.first_step)
_WINDOW_ID = re.compile(r"([1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")
_ORDER = ListOrder((windows.c.epoch, windows.c.first_step), tuple[Int64, Int64])


class _Ranks(msgspec.Struct):
    rank: list[int]


class _StepsAndRanks(msgspec.Struct):
    """The parts of a stored result that name steps and ranks."""

    steps: list[int]
    arrivals: _Ranks | None = None


_RANKS = msgspec.json.Decoder(_StepsAndRanks)


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """A window without its arrays; the figures are None if no step could be analysed."""

    window_id: str
    epoch: int
    first_step: int
    last_step: int
    revision: int
    state: WindowState
    num_steps: int
    slowdown: float | None
    verdict: Verdict | None
    updated_s: float


SUMMARY_COLUMNS = tuple(windows.c[name] for name in WindowSummary.__slots__[1:])


class RecentSummary(NamedTuple):
    """The steps that a job is judged by, in short; `is_open` before the first closed window."""

    first_step: int
    last_step: int
    num_steps: int
    slowdown: float
    verdict: Verdict | None
    is_open: bool


def recent_summary(latest: WindowSummary | None, brief: JobBrief | None) -> RecentSummary | None:
    """From the newest window and its brief; None before the first figures."""
    if latest is None or latest.slowdown is None:
        return None
    recent = latest if brief is None else brief
    steps = (recent.first_step, recent.last_step, recent.num_steps)
    slowdown = recent.slowdown or latest.slowdown
    return RecentSummary(*steps, slowdown, recent.verdict, latest.state == "open")


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One revision of a window, to be saved.

    `result` (docs/glossary.md) is without its figures by step, which are in `per_step`
    (`split_by_step`); `trace` are the raw operations, for closed windows only, and
    `remainders` what rounding took from their times, for those that may be revised.
    """

    epoch: int
    first_step: int
    last_step: int
    revision: int
    state: WindowState
    num_steps: int
    num_ops: int
    slowdown: float | None
    verdict: Verdict | None
    result: WindowResult
    per_step: StoredByStep | None
    trace: bytes | None
    updated_s: float
    remainders: bytes | None = None


_SAVED = tuple(name for name in WindowRecord.__slots__ if name != "remainders")


def save(conn: Connection, job_id: str, record: WindowRecord) -> bool:
    """Save a revision over older ones; False if the same or a newer one is stored."""
    values = {"job_id": job_id} | {name: getattr(record, name) for name in _SAVED}
    is_new = conn.execute(_save_statement(conn.dialect.name), values).one_or_none() is not None
    if is_new and record.remainders is not None:
        row = {name: values[name] for name in ("job_id", "epoch", "first_step")}
        row |= {"remainders": record.remainders, "stored_s": record.updated_s}
        insert_or_replace(conn, window_remainders, [row])
    return is_new


@cache
def _save_statement(dialect: str) -> ReturningInsert[tuple[int]]:
    statement = insert_in(dialect, windows)
    new, key = statement.excluded, {column.name for column in _WINDOW_KEY}
    return statement.on_conflict_do_update(
        index_elements=_WINDOW_KEY,
        set_={name: new[name] for name in _SAVED if name not in key},
        where=new.revision > windows.c.revision,
    ).returning(windows.c.revision)


def get(conn: Connection, job_id: str, window_id: str, *, per_step: bool = False) -> WindowResult:
    """The result of a window, by its id or as "latest" of the current run.

    "latest" is the newest closed window with figures; before the first one the open window.

    Raises:
        JobNotFound: the job never registered.
        WindowNotFound: it has no such window.
    """
    by_step: ColumnElement[Any] = (
        windows.c.per_step if per_step else windows.c.per_step.is_not(None).label("has_steps")
    )
    row = _find(conn, job_id, window_id, windows.c.result, by_step)
    result: WindowResult = row.result
    has_steps = row.per_step is not None if per_step else row.has_steps
    if not has_steps and result.slowdown is not None and result.thinned is None:
        result = replace(result, thinned=Thinned(resolution="window"))
    return join_by_step(result, row.per_step) if per_step else result


def summary(conn: Connection, job_id: str, window_id: str) -> WindowSummary:
    """The summary of a window; raises as `get` does."""
    return summary_of(_find(conn, job_id, window_id, *SUMMARY_COLUMNS))


def figures_by_step(
    conn: Connection, job_id: str, epoch: int, name: str, first_steps: Sequence[int]
) -> list[tuple[list[int], list[Any]]]:
    """Steps, and one figure of `per_step` for every step, of the windows at `first_steps`.

    The other figures are not decoded: of large jobs they are most of the bytes.
    """
    rows = _undecoded(conn, job_id, epoch, first_steps)
    return [(_one_key(row.numbers, "steps"), _one_key(row.figures, name)) for row in rows]


def waited_for_by_step(
    conn: Connection, job_id: str, epoch: int, first_steps: Sequence[int]
) -> list[tuple[list[int], list[int], list[list[float]]]]:
    """Steps, ranks and [step][rank] seconds that others waited, of windows at `first_steps`."""
    waited_for = []
    for row in _undecoded(conn, job_id, epoch, first_steps):
        known = _RANKS.decode(row.numbers)
        if known.arrivals is not None:
            waited_for_s = _one_key(row.figures, "waited_for_s")
            waited_for.append((known.steps, known.arrivals.rank, waited_for_s))
    return waited_for


def _undecoded(
    conn: Connection, job_id: str, epoch: int, first_steps: Sequence[int]
) -> Sequence[Any]:
    """The `numbers` and `figures` by step, as JSON, of the windows of these that have any."""
    query = (
        select(type_coerce(windows.c.result, PackedBytes).label("numbers"),
               type_coerce(windows.c.per_step, PackedBytes).label("figures"))
        .where(*of_run(windows, job_id, epoch), windows.c.first_step.in_(first_steps))
        .where(windows.c.per_step.is_not(None), windows.c.slowdown.is_not(None))
        .order_by(windows.c.first_step)
    )  # fmt: skip
    return conn.execute(query).all()


def newest_with_figures() -> ColumnElement[int]:
    """Subquery: first step of the newest window with figures of each job's current run.

    A closed one, and only before the first of these the open one, which has few steps.
    """
    return func.coalesce(_newest_first_step(is_closed=True), _newest_first_step(is_closed=False))


def _newest_first_step(*, is_closed: bool) -> ScalarSelect[int]:
    figures = windows.alias("closed" if is_closed else "figures")
    query = (
        select(func.max(figures.c.first_step))
        .where(same_run(figures, jobs), figures.c.slowdown.is_not(None))
        .correlate(jobs)
    )
    return (query.where(figures.c.state != "open") if is_closed else query).scalar_subquery()


def last_closed(conn: Connection, job_id: str, epoch: int, *, limit: int) -> list[WindowSummary]:
    """The last closed windows of a run that have figures, ascending."""
    query = _newest_first(job_id, *SUMMARY_COLUMNS).where(windows.c.epoch == epoch)
    query = query.where(windows.c.slowdown.is_not(None), windows.c.state != "open").limit(limit)
    return [summary_of(row) for row in conn.execute(query)][::-1]


def trace(conn: Connection, job_id: str, window_id: str) -> bytes | None:
    """The raw operations of a closed window, None of an open one; raises as `get` does."""
    packed: bytes | None = _find(conn, job_id, window_id, windows.c.trace).trace
    return packed


def remainders(conn: Connection, job_id: str, epoch: int, first_step: int) -> bytes | None:
    """What rounding took from the times of a window that may be revised; None if not kept."""
    query = select(window_remainders.c.remainders)
    return conn.scalar(query.filter_by(job_id=job_id, epoch=epoch, first_step=first_step))


def forget_remainders(
    conn: Connection, job_id: str, epoch: int, *, before_step: int | None
) -> None:
    """Forget those of a run's windows before this first step; of all of them if it is None."""
    statement = delete(window_remainders).where(*of_run(window_remainders, job_id, epoch))
    if before_step is not None:
        statement = statement.where(window_remainders.c.first_step < before_step)
    conn.execute(statement)


def page(
    conn: Connection, job_id: str, *, cursor: str | None = None, limit: int = 100
) -> tuple[list[WindowSummary], str | None]:
    """Summaries of all runs, the newest first, and the cursor of the next page."""
    query = select(*SUMMARY_COLUMNS).where(windows.c.job_id == job_id)
    rows, next_cursor = _ORDER.page(conn, query, cursor, limit)
    if not rows:
        current_epoch(conn, job_id)
    return [summary_of(row) for row in rows], next_cursor


def summary_of(row: Sequence[Any]) -> WindowSummary:
    """The summary in a row of the columns `SUMMARY_COLUMNS`."""
    epoch, first_step = row[:2]
    return WindowSummary(f"{epoch}-{first_step}", *row)


def _one_key(document: bytes, name: str) -> list[Any]:
    """The list at one key of a JSON object; other keys are not decoded."""
    return list(getattr(_one_key_decoder(name).decode(document), name) or ())


@cache
def _one_key_decoder(name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(msgspec.defstruct("Only", [(name, list[Any] | None, None)]))


def _newest_first(job_id: str, *columns: ColumnElement[Any]) -> Select[Any]:
    query = select(*columns).where(windows.c.job_id == job_id)
    return query.order_by(windows.c.epoch.desc(), windows.c.first_step.desc())


def _find(conn: Connection, job_id: str, window_id: str, *columns: ColumnElement[Any]) -> Any:
    query = _newest_first(job_id, *columns).limit(1)
    if window_id == "latest":
        row = _latest(conn, job_id, query)
    else:
        epoch, first_step = parse_window_id(job_id, window_id)
        stored_step = _stored_first_step(conn, job_id, epoch, first_step)
        query = query.where(windows.c.epoch == epoch, windows.c.first_step == stored_step)
        row = conn.execute(query).one_or_none()
    if row is None:
        current_epoch(conn, job_id)
        raise WindowNotFound(job_id, window_id)
    return row


def _stored_first_step(conn: Connection, job_id: str, epoch: int, first_step: int) -> int:
    """The first step of the stored window that a window became part of when it was thinned.

    Links in alerts, messages and tickets go on to work.
    """
    query = select(windows.c.first_step, windows.c.last_step).where(*of_run(windows, job_id, epoch))
    query = query.where(windows.c.first_step <= first_step)
    row = conn.execute(query.order_by(windows.c.first_step.desc()).limit(1)).one_or_none()
    if row is None or row.first_step == first_step or row.last_step < first_step:
        return first_step
    key = {"job_id": job_id, "epoch": epoch, "first_step": row.first_step}
    result: WindowResult = conn.execute(select(windows.c.result).filter_by(**key)).scalar_one()
    return first_step if result.thinned is None else int(row.first_step)


def parse_window_id(job_id: str, window_id: str) -> tuple[int, int]:
    """Epoch and first step of a window's id; raises WindowNotFound."""
    match = _WINDOW_ID.fullmatch(window_id)
    if match is None:
        raise WindowNotFound(job_id, window_id)
    return int(match[1]), int(match[2])


def _latest(conn: Connection, job_id: str, newest_first: Select[Any]) -> Any:
    # A window without a complete step has no figures, and an open one has few steps: prefer the
    # one before.
    current = select(jobs.c.epoch).where(jobs.c.job_id == job_id).scalar_subquery()
    query = newest_first.where(windows.c.epoch == current)
    with_figures = query.where(windows.c.slowdown.is_not(None))
    closed = with_figures.where(windows.c.state != "open")
    rows = (conn.execute(choice).one_or_none() for choice in (closed, with_figures, query))
    return next((row for row in rows if row is not None), None)


@dataclass(frozen=True, slots=True)
class StepRow:
    """Recorded, simulated and ideal time of one step; a skipped one has a reason and no figures.

    `started_s` is the Unix time at which it started, None where that is not known. A row that was
    thinned has means over `num_steps` steps, from its own to `last_step`.
    """

    epoch: int
    step: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    slowdown: float | None
    window_id: str
    skipped_reason: str | None = None
    started_s: float | None = None
    last_step: int | None = None
    num_steps: int | None = None


_STEP_COLUMNS = tuple(steps.c[name] for name in StepRow.__slots__)
# Steps with figures that a row stands for.
_NUM_STEPS = func.coalesce(steps.c.num_steps, 1)


def save_steps(conn: Connection, job_id: str, rows: Sequence[StepRow]) -> None:
    """Save steps, replacing earlier rows."""
    insert_or_replace(conn, steps, [{"job_id": job_id, **asdict(row)} for row in rows])


def step_series(
    conn: Connection,
    job_id: str,
    *,
    epoch: int | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int = 1000,
) -> list[StepRow]:
    """The last `limit` steps between `first` and `last` of one run (the current), ascending.

    Raises:
        JobNotFound: the job never registered.
    """
    current = current_epoch(conn, job_id)
    run = of_run(steps, job_id, current if epoch is None else epoch)
    query = select(*_STEP_COLUMNS).where(*run)
    if first is not None:
        query = query.where(steps.c.step >= first)
    if last is not None:
        query = query.where(steps.c.step <= last)
    rows = conn.execute(query.order_by(steps.c.step.desc()).limit(limit)).all()
    return [StepRow(*row) for row in reversed(rows)]


def step_starts(
    conn: Connection, job_id: str, epoch: int, wanted: Iterable[int]
) -> dict[int, float]:
    """Unix times at which these steps of a run started, as far as known."""
    starts_s: dict[int, float] = {}
    query = select(steps.c.step, steps.c.started_s).where(*of_run(steps, job_id, epoch))
    query = query.where(steps.c.started_s.is_not(None))
    for some in chunks(sorted(set(wanted))):
        starts_s |= dict(conn.execute(query.where(steps.c.step.in_(some))).all())
    return starts_s


def windows_between(
    conn: Connection, job_id: str, epoch: int, *, from_s: float | None, to_s: float | None
) -> tuple[int, int] | None:
    """First steps of the first and last window with steps that started within some time.

    Unix times, None: since the run began, until now. None where no recorded step started then.
    """
    inside = [*of_run(steps, job_id, epoch), steps.c.started_s.is_not(None)]
    if from_s is not None:
        ended_s = steps.c.started_s + steps.c.recorded_s * steps.c.num_steps
        # Of thinned steps only the start of the first one is known.
        inside.append(or_(steps.c.started_s >= from_s, ended_s > from_s))
    if to_s is not None:
        inside.append(steps.c.started_s <= to_s)
    ends = select(func.min(steps.c.step), func.max(steps.c.step)).where(*inside)
    first, last = conn.execute(ends).one()
    if first is None:
        return None
    start = select(func.max(windows.c.first_step)).where(*of_run(windows, job_id, epoch))
    first_of = conn.scalar(start.where(windows.c.first_step <= first))
    first_of_last = conn.scalar(start.where(windows.c.first_step <= last))
    return None if first_of is None else (first_of, first_of_last)


def recorded_time(conn: Connection, job_id: str, epoch: int) -> tuple[float, float] | None:
    """Unix times at which the first and the last step of a run started; None if not known."""
    ends = select(func.min(steps.c.started_s), func.max(steps.c.started_s))
    first_s, last_s = conn.execute(ends.where(*of_run(steps, job_id, epoch))).one()
    return None if first_s is None else (first_s, last_s)


# A job that reports for years has hundreds of thousands of windows.
MAX_LISTED = 20_000


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Successive windows of one run; sums are over all of them.

    `first_steps` (ascending) are of all windows, or of `MAX_LISTED` of them, evenly spread with
    both ends.
    """

    epoch: int
    first_steps: Sequence[int]
    last_step: int
    num_windows: int
    num_steps: int
    most_steps: int  # with figures by step, of one window
    revisions: int


def window_range(conn: Connection, job_id: str, first_id: str, last_id: str) -> WindowRange:
    """The windows from one to another of the same run.

    Raises:
        InvalidRequest: the ids are of different runs, or in the wrong order.
        JobNotFound: the job never registered.
        WindowNotFound: there is none.
    """
    epoch, first = parse_window_id(job_id, first_id)
    last_epoch, last = parse_window_id(job_id, last_id)
    if epoch != last_epoch or first > last:
        raise InvalidRequest(
            f"windows {first_id} to {last_id} are no range: give the earlier window first, "
            "and a later one of the same run"
        )
    first = _stored_first_step(conn, job_id, epoch, first)
    window = windows.c
    inside = and_(*of_run(windows, job_id, epoch), window.first_step.between(first, last))
    num_with_figures = case((window.per_step.is_not(None), window.num_steps), else_=0)
    counted = select(
        func.max(window.last_step), func.count(), func.sum(window.num_steps),
        func.max(num_with_figures), func.sum(window.revision),
    ).where(inside)  # fmt: skip
    last_step, num_windows, *sums = conn.execute(counted).one()
    if not num_windows:
        current_epoch(conn, job_id)
        raise WindowNotFound(job_id, f"{first_id}..{last_id}")
    listed = _listed_windows(conn, inside, num_windows)
    return WindowRange(epoch, listed, last_step, num_windows, *map(int, sums))


def gpu_s_lost(conn: Connection, job_id: str, span: WindowRange, *, num_gpus: int) -> float | None:
    """GPU-seconds that all windows of the span lost, each by its own result.

    None if some of their steps have been removed.
    """
    times = [steps.c[name] for name in ("recorded_s", "simulated_s", "ideal_s")]
    sums = [func.sum(time_s * _NUM_STEPS).label(time_s.name) for time_s in times]
    by_window = (
        select(*sums, func.sum(_NUM_STEPS).label("num_steps"))
        .where(*of_run(steps, job_id, span.epoch))
        .where(steps.c.step.between(span.first_steps[0], span.last_step))
        .where(*(time_s.is_not(None) for time_s in times))
        .group_by(steps.c.window_id)
        .subquery()
    ).c
    lost_s = by_window.recorded_s * (1 - by_window.ideal_s / by_window.simulated_s)
    summed = select(func.sum(lost_s), func.sum(by_window.num_steps))
    total_s, num_steps = conn.execute(summed).one()
    # Steps may have been added since the windows were counted.
    return None if num_steps is None or num_steps < span.num_steps else float(total_s) * num_gpus


def _listed_windows(conn: Connection, inside: ColumnElement[Any], num_windows: int) -> list[int]:
    stride = -(-num_windows // MAX_LISTED)
    at = (func.row_number().over(order_by=windows.c.first_step) - 1).label("at")
    numbered = select(windows.c.first_step, at).where(inside).subquery().c
    kept = or_(numbered.at % stride == 0, numbered.at == num_windows - 1)
    query = select(numbered.first_step).where(kept).order_by(numbered.first_step)
    return list(conn.execute(query).scalars())


StepPosition = tuple[int, int]  # epoch, step


@dataclass(frozen=True, slots=True)
class StepTimeSums:
    """Sums over the measured steps of a window, seconds.

    `first_at_s` and `last_at_s` are the Unix times at which the first and the last of them started,
    None where not known.
    """

    simulated_s: float
    ideal_s: float
    first_at_s: float | None = None
    last_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class UnanalysedStep:
    """A skipped step, and why."""

    epoch: int
    step: int
    reason: str


def newest_windows(conn: Connection, job_id: str, *, limit: int) -> tuple[list[WindowSummary], int]:
    """The newest windows of all runs, ascending, and how many are older; raises JobNotFound."""
    query = _newest_first(job_id, *SUMMARY_COLUMNS).limit(limit)
    newest = [summary_of(row) for row in conn.execute(query)][::-1]
    if not newest:
        current_epoch(conn, job_id)
    counted = select(func.count()).select_from(windows).where(windows.c.job_id == job_id)
    return newest, int(conn.execute(counted).scalar_one()) - len(newest)


def newest_measured(conn: Connection, job_id: str, epoch: int) -> WindowSummary | None:
    """The newest closed window of a run that has figures; before the first one the open one."""
    query = select(*SUMMARY_COLUMNS).where(*of_run(windows, job_id, epoch))
    newest_closed = ((windows.c.state == "open").asc(), windows.c.first_step.desc())
    query = query.where(windows.c.slowdown.is_not(None)).order_by(*newest_closed)
    row = conn.execute(query.limit(1)).one_or_none()
    return None if row is None else summary_of(row)


def step_time_sums(
    conn: Connection, job_id: str, *, since: StepPosition
) -> dict[str, StepTimeSums]:
    """Sums of step times by window id, from a step on."""
    times = (steps.c.simulated_s, steps.c.ideal_s)
    sums = (func.sum(time_s * _NUM_STEPS) for time_s in times)
    starts_s = (func.min(steps.c.started_s), func.max(steps.c.started_s))
    query = (
        select(steps.c.window_id, *sums, *starts_s)
        .where(steps.c.job_id == job_id, tuple_(steps.c.epoch, steps.c.step) >= since)
        .where(*(time_s.is_not(None) for time_s in times))
        .group_by(steps.c.window_id)
    )
    return {window_id: StepTimeSums(*sums) for window_id, *sums in conn.execute(query)}


def skipped_steps(
    conn: Connection, job_id: str, *, since: StepPosition, limit: int, besides: Iterable[str] = ()
) -> list[UnanalysedStep]:
    """The newest skipped steps from a step on, ascending; none whose reason begins like these."""
    query = (
        select(steps.c.epoch, steps.c.step, steps.c.skipped_reason)
        .where(steps.c.job_id == job_id, tuple_(steps.c.epoch, steps.c.step) >= since)
        .where(steps.c.skipped_reason.is_not(None))
        .where(*(~steps.c.skipped_reason.startswith(text, autoescape=True) for text in besides))
        .order_by(steps.c.epoch.desc(), steps.c.step.desc())
        .limit(limit)
    )
    return [UnanalysedStep(*row) for row in reversed(conn.execute(query).all())]


def run_beginnings(conn: Connection, job_id: str, *, since: int) -> dict[int, float]:
    """When (Unix time) each run from an epoch on registered."""
    query = select(runs.c.epoch, runs.c.registered_s)
    query = query.where(runs.c.job_id == job_id, runs.c.epoch >= since).order_by(runs.c.epoch)
    return {row.epoch: row.registered_s for row in conn.execute(query)}
