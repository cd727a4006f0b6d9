"""Queue entries that nobody could take: kept whole, until a person replays or drops them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select, update

from app.errors import NotFound
from app.store.paging import Int64, from_cursor, split, to_cursor
from app.store.tables import dead_letters
from app.store.upsert import insert

State = Literal["dead", "replayed", "dropped"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry as the queue held it, and why it could not be taken.

    `epoch` is None and `num_ops` 0 where even they cannot be read.
    """

    job_id: str
    epoch: int | None
    entry_id: str
    num_ops: int
    deliveries: int
    reason: str
    received_s: float
    died_s: float
    body: bytes


@dataclass(frozen=True, slots=True)
class LetterSummary:
    """A dead letter without its body, of which only the size is told."""

    letter_id: int
    job_id: str
    epoch: int | None
    entry_id: str
    num_ops: int
    deliveries: int
    reason: str
    received_s: float
    died_s: float
    state: State
    settled_s: float | None
    size_bytes: int


_LETTER = tuple(dead_letters.c[name] for name in DeadLetter.__slots__)
_SUMMARY = (
    *(dead_letters.c[name] for name in LetterSummary.__slots__ if name != "size_bytes"),
    func.length(dead_letters.c.body).label("size_bytes"),
)


def add(conn: Connection, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Keep these; returns those that were not kept before, since an entry may come twice."""
    statement = insert(conn, dead_letters).on_conflict_do_nothing(
        index_elements=[dead_letters.c.job_id, dead_letters.c.entry_id]
    )
    new = statement.returning(dead_letters.c.letter_id)
    return [
        letter
        for letter in letters
        if conn.execute(new.values(**asdict(letter), state="dead")).one_or_none() is not None
    ]


def page(
    conn: Connection, *, state: State | None = None, cursor: str | None = None, limit: int = 100
) -> tuple[list[LetterSummary], str | None]:
    """Letters in one state or in any, the oldest first, and the cursor of the next page."""
    query = select(*_SUMMARY).order_by(dead_letters.c.letter_id).limit(limit + 1)
    if state is not None:
        query = query.where(dead_letters.c.state == state)
    if cursor is not None:
        query = query.where(dead_letters.c.letter_id > from_cursor(cursor, tuple[Int64])[0])
    rows, more = split([LetterSummary(*row) for row in conn.execute(query)], limit)
    return rows, to_cursor(rows[-1].letter_id) if more else None


def get(conn: Connection, letter_id: int) -> DeadLetter:
    """The letter with its body.

    Raises:
        NotFound: there is none of this number.
    """
    return DeadLetter(**_find(conn, letter_id, _LETTER))


def summary(conn: Connection, letter_id: int) -> LetterSummary:
    """The letter without its body; raises as `get` does."""
    return LetterSummary(**_find(conn, letter_id, _SUMMARY))


def mark(
    conn: Connection, letter_id: int, state: Literal["replayed", "dropped"], *, now_s: float
) -> None:
    """Somebody has dealt with the letter; a later word replaces an earlier one.

    Raises:
        NotFound: there is none of this number.
    """
    settled = update(dead_letters).where(dead_letters.c.letter_id == letter_id)
    if not conn.execute(settled.values(state=state, settled_s=now_s)).rowcount:
        raise _unknown(letter_id)


def count(conn: Connection) -> dict[State, int]:
    """How many there are in each state."""
    query = select(dead_letters.c.state, func.count().label("number")).group_by(
        dead_letters.c.state
    )
    found = {row.state: row.number for row in conn.execute(query)}
    return {each: found.get(each, 0) for each in get_args(State)}


def _find(conn: Connection, letter_id: int, columns: Sequence[ColumnElement[Any]]) -> RowMapping:
    query = select(*columns).where(dead_letters.c.letter_id == letter_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise _unknown(letter_id)
    found: RowMapping = row._mapping
    return found


def _unknown(letter_id: int) -> NotFound:
    return NotFound(f"no dead letter {letter_id}: see 'paceline dead-letters list'")
