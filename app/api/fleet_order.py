"""Which of the fleet's jobs are asked for, in which order, and a page of them."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from app.api.fleet import Standing
from app.api.job_state import JobState
from app.errors import InvalidRequest
from app.store.paging import JobId, from_cursor, to_cursor
from app.trace.names import plain

Order = Literal["lost", "slowdown", "gpus", "name", "since", "state"]
Direction = Literal["asc", "desc"]

OWNER = "owner"  # the label that says whose a job is

# The gravest first.
_GRAVITY: tuple[JobState, ...] = (
    "stalled",
    "straggling",
    "silent",
    "stale",
    "low-fidelity",
    "not-analysed",
    "healthy",
    "finished",
)
_ASCENDING: tuple[Order, ...] = ("name", "state")
_Value = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader looks for: each that is given has to fit.

    `text` is sought in job ids and names, the owner label, framework, causes and culprits' hosts;
    `on_host` are keys of the jobs that have, or had, a host whose name begins with it.
    """

    text: str = ""
    on_host: frozenset[str] = frozenset()
    state: JobState | None = None
    cause: str | None = None

    def fits(self, standing: Standing) -> bool:
        """Whether this job is one of those."""
        if self.state is not None and standing.state != self.state:
            return False
        if self.cause is not None and self.cause not in standing.causes:
            return False
        text = self.text.strip().casefold()
        is_there = standing.line.job_id in self.on_host
        return not text or is_there or any(text in each.casefold() for each in _texts(standing))


def in_order(
    standings: Iterable[Standing], order: Order, direction: Direction | None
) -> list[Standing]:
    """The jobs in this order, equal ones by id; those that it knows nothing of come last.

    Of these the gravest are first, whichever way the others go, and then it is by name.
    """
    return sorted(standings, key=lambda each: _place(each, order, direction))


def page(
    ordered: Sequence[Standing],
    order: Order,
    direction: Direction | None,
    *,
    cursor: str | None,
    limit: int,
) -> tuple[Sequence[Standing], str | None]:
    """The jobs that come after the one that the cursor names, and the next cursor.

    A cursor holds the place that its job had when it was given out: the page goes on from there,
    wherever that job is by now.
    """
    first = 0
    if cursor is not None:
        after = _given_out(cursor, order, direction)
        first = bisect_right(ordered, after, key=lambda each: _place(each, order, direction))
    part, left = ordered[first : first + limit], len(ordered) - first - limit
    return part, _cursor(part[-1], order, direction) if left > 0 else None


class _Cursor(NamedTuple):
    order: Order
    direction: Direction | None
    is_known: bool
    value: _Value
    job: JobId


@dataclass(frozen=True, slots=True)
class _Down:
    """A value that comes before smaller ones."""

    value: _Value

    def __lt__(self, other: "_Down") -> bool:
        return other.value < self.value


def _place(standing: Standing, order: Order, direction: Direction | None) -> tuple[Any, ...]:
    return _sortable(*_known(standing, order), plain(standing.line.job_id), order, direction)


def _sortable(
    is_known: bool,
    value: _Value,
    job: str,
    order: Order,
    direction: Direction | None,
) -> tuple[Any, ...]:
    if not is_known:
        return (True, value, job)
    is_down = (direction or ("asc" if order in _ASCENDING else "desc")) == "desc"
    return (False, _Down(value) if is_down else value, job)


def _known(standing: Standing, order: Order) -> tuple[bool, _Value]:
    """Whether there is something to order the job by, and that or what stands in for it."""
    value = _value(standing, order)
    if value is not None:
        return True, value
    return False, (float(_GRAVITY.index(standing.state)), standing.line.name.casefold())


def _value(standing: Standing, order: Order) -> _Value | None:
    """What the job is ordered by, as number and text; None where it is not known."""
    match order:
        case "name":
            return 0.0, standing.line.name.casefold()
        case "state":
            return float(_GRAVITY.index(standing.state)), ""
        case "gpus":
            return float(standing.line.num_gpus), ""
    number = {
        "lost": standing.lost_per_hour,
        "slowdown": standing.slowdown,
        "since": standing.since_s,
    }[order]
    return None if number is None else (number, "")


def _cursor(standing: Standing, order: Order, direction: Direction | None) -> str:
    return to_cursor(order, direction, *_known(standing, order), plain(standing.line.job_id))


def _given_out(cursor: str, order: Order, direction: Direction | None) -> tuple[Any, ...]:
    last = from_cursor(cursor, _Cursor)
    if (last.order, last.direction) != (order, direction):
        raise InvalidRequest("the cursor is one of another order")
    return _sortable(last.is_known, last.value, last.job, order, direction)


def _texts(standing: Standing) -> Iterable[str]:
    line = standing.line
    yield from (plain(line.job_id), line.name, line.labels.get(OWNER, ""), line.framework or "")
    for finding in standing.findings or ():
        yield finding["cause"].replace("-", " ")
        yield from (culprit.get("host", "") for culprit in finding["culprits"])
