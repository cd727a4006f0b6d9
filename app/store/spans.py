"""Windows from one to another of a run: which there are, and what was lost in all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from app.errors import InvalidRequest, WindowNotFound
from app.store.tables import steps, windows
from app.store.windows import check_job, place_of

# More are not listed: a job that reports for years has hundreds of thousands.
MAX_LISTED = 20_000


@dataclass(frozen=True, slots=True)
class Span:
    """Windows of one run; sums are over all of them.

    `first_steps` (ascending) are those of all windows, or of at most `MAX_LISTED` of them, evenly
    spread with both ends.
    """

    epoch: int
    first_steps: Sequence[int]
    last_step: int
    num_windows: int
    num_steps: int
    most_steps: int  # of one window
    revisions: int


def between(conn: Connection, job_id: str, first_id: str, last_id: str) -> Span:
    """The windows from one to another of the same run.

    Raises:
        InvalidRequest: they are of different runs, or in the wrong order.
        JobNotFound: the job never registered.
        WindowNotFound: there is none.
    """
    (epoch, first), (last_epoch, last) = (place_of(job_id, each) for each in (first_id, last_id))
    if epoch != last_epoch or first > last:
        raise InvalidRequest(
            f"windows {first_id} to {last_id} are none: name the earlier one first, "
            "and a later one of the same run"
        )
    of = windows.c
    inside = and_(of.job_id == job_id, of.epoch == epoch, of.first_step.between(first, last))
    counted = select(
        func.max(of.last_step), func.count(), func.sum(of.num_steps), func.max(of.num_steps),
        func.sum(of.revision),
    ).where(inside)  # fmt: skip
    last_step, num_windows, *sums = conn.execute(counted).one()
    if not num_windows:
        check_job(conn, job_id)
        raise WindowNotFound(job_id, f"{first_id}..{last_id}")
    listed = _listed(conn, inside, num_windows)
    return Span(epoch, listed, last_step, num_windows, *(int(each) for each in sums))


def gpu_s_lost(conn: Connection, job_id: str, span: Span, *, num_gpus: int) -> float | None:
    """GPU-seconds that all windows of the span lost, each as its own result says it.

    None where steps of them are not there any more.
    """
    of = steps.c
    total = {name: func.sum(of[name]).label(name) for name in ("recorded_s", "simulated_s",
                                                               "ideal_s")}  # fmt: skip
    by_window = (
        select(*total.values(), func.count().label("num_steps"))
        .where(of.job_id == job_id, of.epoch == span.epoch)
        .where(of.step.between(span.first_steps[0], span.last_step))
        .where(*(of[name].is_not(None) for name in total))
        .group_by(of.window_id)
        .subquery()
    ).c
    lost_s = by_window.recorded_s * (1 - by_window.ideal_s / by_window.simulated_s)
    summed = select(func.sum(lost_s), func.sum(by_window.num_steps))
    found_s, num_steps = conn.execute(summed).one()
    # Steps may have come since the windows were counted, never gone, but with their windows.
    return None if num_steps is None or num_steps < span.num_steps else float(found_s) * num_gpus


def _listed(conn: Connection, inside: ColumnElement[Any], num_windows: int) -> list[int]:
    stride = -(-num_windows // MAX_LISTED)
    at = (func.row_number().over(order_by=windows.c.first_step) - 1).label("at")
    numbered = select(windows.c.first_step, at).where(inside).subquery().c
    kept = or_(numbered.at % stride == 0, numbered.at == num_windows - 1)
    query = select(numbered.first_step).where(kept).order_by(numbered.first_step)
    return list(conn.execute(query).scalars())
