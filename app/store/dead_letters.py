"""Dead letters: queue entries that could not be processed, until a person replays or drops them.

Before that, an entry that is delivered again and again is tried alone. Trials are counted before
the attempt, as it may kill the process: one per process, in the table `totals`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, delete, func, select, update

from app.errors import NotFound
from app.store.database import Int64, ListOrder, chunks, equal, insert, insert_new, one_row
from app.store.tables import dead_letters, totals

LetterState = Literal["dead", "replayed", "dropped"]


@dataclass(frozen=True, slots=True)
class _FailedEntry:
    """A queue entry and why it could not be processed.

    `epoch` is None and `num_ops` 0 if they cannot be read.
    """

    job_id: str
    epoch: int | None
    entry_id: str
    num_ops: int
    deliveries: int
    reason: str
    received_s: float
    died_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter(_FailedEntry):
    """A queue entry that could not be processed, with its body."""

    body: bytes


@dataclass(frozen=True, slots=True)
class LetterSummary(_FailedEntry):
    """A stored dead letter, with the size of its body instead of the body."""

    letter_id: int
    state: LetterState
    settled_s: float | None
    size_bytes: int


_ORDER = ListOrder((dead_letters.c.letter_id,), tuple[Int64], newest_first=False)
_LETTER = [dead_letters.c[field.name] for field in fields(DeadLetter)]
_SUMMARY: list[ColumnElement[Any]] = [
    dead_letters.c[field.name] for field in fields(LetterSummary)[:-1]
]
_SUMMARY.append(func.length(dead_letters.c.body).label("size_bytes"))


def add(conn: Connection, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Save letters; returns the new ones, since an entry may come twice."""
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
    conn: Connection,
    *,
    state: LetterState | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[LetterSummary], str | None]:
    """Letters in one state or in any, the oldest first, and the cursor of the next page."""
    query = select(*_SUMMARY).where(*equal(dead_letters, state=state))
    rows, more = _ORDER.page(conn, query, cursor, limit)
    return [LetterSummary(*row) for row in rows], more


def get(conn: Connection, letter_id: int) -> DeadLetter:
    """The letter with its body; raises NotFound."""
    return DeadLetter(*_find(conn, letter_id, _LETTER))


def summary(conn: Connection, letter_id: int) -> LetterSummary:
    """The letter without its body; raises as `get` does."""
    return LetterSummary(*_find(conn, letter_id, _SUMMARY))


def mark(
    conn: Connection, letter_id: int, state: Literal["replayed", "dropped"], *, now_s: float
) -> None:
    """Set the letter's state; a later call replaces an earlier one. Raises NotFound."""
    settled = update(dead_letters).where(dead_letters.c.letter_id == letter_id)
    if not conn.execute(settled.values(state=state, settled_s=now_s)).rowcount:
        raise _not_found(letter_id)


def count(conn: Connection) -> dict[LetterState, int]:
    """Number of letters in each state."""
    query = select(dead_letters.c.state, func.count()).group_by(dead_letters.c.state)
    by_state: dict[str, int] = dict(conn.execute(query).all())
    return {state: by_state.get(state, 0) for state in get_args(LetterState)}


def _find(conn: Connection, letter_id: int, columns: Sequence[ColumnElement[Any]]) -> Any:
    query = select(*columns).where(dead_letters.c.letter_id == letter_id)
    return one_row(conn, query, _not_found(letter_id))


def _not_found(letter_id: int) -> NotFound:
    return NotFound(f"no dead letter {letter_id}: see 'paceline dead-letters list'")


def trials(conn: Connection, shard: int, process: str) -> dict[str, int]:
    """Number of other processes with an unfinished trial, by entry."""
    keys = _trials(conn, shard).values()
    return dict(Counter(entry for entry, tried_by in keys if tried_by != process))


def _trials(conn: Connection, shard: int) -> dict[str, list[str]]:
    """Entry and process of each trial of a shard, by the name of its row."""
    is_trial = totals.c.name.startswith(f"tried:{shard}:", autoescape=True)
    names = conn.scalars(select(totals.c.name).where(is_trial))
    return {name: name.split(":")[2:] for name in names}


def begin_trials(conn: Connection, shard: int, entry_ids: Sequence[str], process: str) -> None:
    """Note that this process begins to work on these entries."""
    rows = [{"name": f"tried:{shard}:{name}:{process}", "value": 1} for name in entry_ids]
    insert_new(conn, totals, rows)


def end_trials(
    conn: Connection,
    shard: int,
    entry_ids: Collection[str] | None = None,
    *,
    of_process: str | None = None,
) -> None:
    """Remove the trials of these entries; None: of all in the shard, whose queue is empty.

    Only those `of_process`, if it is given.
    """
    ended = [
        name
        for name, (entry, process) in _trials(conn, shard).items()
        if (entry_ids is None or entry in entry_ids) and of_process in (None, process)
    ]
    for some in chunks(ended):
        conn.execute(delete(totals).where(totals.c.name.in_(some)))
