"""What became of every operation that was taken from the queue: exactly one of five things.

Collectives inside groups are counted apart from operations.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, select, true

from app.store import totals
from app.store.dead_letters import DeadLetter
from app.store.projects import owns
from app.store.tables import ingest_counts, projects, runs
from app.store.upsert import replace
from app.trace.names import project_of


@dataclass(frozen=True, slots=True)
class Counts:
    """Operations by what became of them; the last three are beside that.

    `lost_batches` were skipped by their worker's later ones and never came, `last_conflict` is a
    sample of a batch that came again with another content. `in_groups` counts collectives inside
    groups that were "accepted", "duplicate" (with their batch), "late", or "refused" as too many
    were in memory; None where none came.
    """

    accepted: int = 0
    duplicate: int = 0
    conflict: int = 0
    late: int = 0
    dead: int = 0
    lost_batches: int = 0
    last_conflict: dict[str, Any] | None = None
    in_groups: dict[str, int] | None = None

    @property
    def taken(self) -> int:
        """Operations taken from the queue."""
        return self.accepted + self.duplicate + self.conflict + self.late + self.dead


_NUMBERS = tuple(field.name for field in fields(Counts) if field.type is int)


def save(conn: Connection, job_id: str, epoch: int, counts: Counts) -> None:
    """Save what has become of a run's operations so far, over what was saved before."""
    replace(conn, ingest_counts, [{"job_id": job_id, "epoch": epoch, **asdict(counts)}])


def load(conn: Connection, job_id: str, epoch: int) -> Counts:
    """What `save` kept last; all 0 before the first time."""
    names = [field.name for field in fields(Counts)]
    query = select(*(ingest_counts.c[name] for name in names))
    row = conn.execute(query.where(*_of_run(job_id, epoch))).one_or_none()
    return Counts() if row is None else Counts(*row)


def add_to_project(conn: Connection, project: str, counts: Counts) -> None:
    """Count these in a project's sums, for operations whose run is not known or no longer kept."""
    for name in _NUMBERS:
        if n := getattr(counts, name):
            totals.add(conn, f"{name}{totals.PART}{project}", n)


def count_dead(conn: Connection, letter: DeadLetter) -> None:
    """Count a new dead letter: in its run, or its project's sums where no run of it is known."""
    if letter.epoch is None or not has_run(conn, letter.job_id, letter.epoch):
        add_to_project(conn, project_of(letter.job_id), Counts(dead=letter.num_ops))
        return
    key = (letter.job_id, letter.epoch)
    before = load(conn, *key)
    save(conn, *key, dataclasses.replace(before, dead=before.dead + letter.num_ops))


def by_project(conn: Connection) -> list[tuple[str, Counts]]:
    """The sums of every project, in the order of their names; they never go down."""
    names = conn.execute(select(projects.c.project).order_by(projects.c.project)).scalars().all()
    return [
        (name, _sums(conn, owns(name, ingest_counts.c.job_id), totals.parts(conn, name)))
        for name in names
    ]


def total(conn: Connection) -> Counts:
    """The sums of the whole service, of runs that are no longer kept, too; they never go down."""
    return _sums(conn, true(), totals.all_parts(conn))


def remove(conn: Connection, job_id: str, epoch: int) -> None:
    """Forget a run, but not what it adds to its project's sums."""
    add_to_project(conn, project_of(job_id), load(conn, job_id, epoch))
    conn.execute(delete(ingest_counts).where(*_of_run(job_id, epoch)))


def has_run(conn: Connection, job_id: str, epoch: int) -> bool:
    """Whether such a run ever registered, so that it can be counted in."""
    query = select(runs.c.epoch).where(runs.c.job_id == job_id, runs.c.epoch == epoch)
    return conn.execute(query).one_or_none() is not None


def _sums(conn: Connection, of_runs: ColumnElement[bool], beside: Mapping[str, int]) -> Counts:
    sums = (func.coalesce(func.sum(ingest_counts.c[name]), 0) for name in _NUMBERS)
    kept = conn.execute(select(*sums).where(of_runs)).one()
    # PostgreSQL sums up to a Decimal.
    each = zip(_NUMBERS, map(int, kept), strict=True)
    values: dict[str, Any] = {name: n + beside.get(name, 0) for name, n in each}
    return Counts(**values)


def _of_run(job_id: str, epoch: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return ingest_counts.c.job_id == job_id, ingest_counts.c.epoch == epoch
