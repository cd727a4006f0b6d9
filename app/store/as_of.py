"""Up to when the workers' data are processed: of each shard of the queue, and of each job.

A consumer saves for its shards up to when all batches are taken; an API process which jobs'
batches it refuses for lack of room, and a consumer those whose batches it cannot take. What a job
did after that is not known: missing data prove nothing then. A shard without a consumer keeps the
time that its last one saved.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, case, delete, func, select, update

from app.store.database import insert
from app.store.tables import refusals, service_watches, shards
from app.trace.job import job_key, project_of, shard_of

# A turn with a window of 16 million operations takes half of it. It is the lease of a consumer,
# too: where one has died, the next is about to begin.
BEHIND_AFTER_S = 15.0
EVERY_JOB = "*"
# Pushes of any job, since a part of the service does not answer: no job is judged by it.
ANY_JOB = "?"
# A worker that is refused tries again within 30 s (`Backoff` of the client), and a push takes time.
RETRIED_WITHIN_S = 45.0
# Refusals of a job that go on say so every few seconds (`app.watch.service_watch.CHECK_EVERY_S`).
_GOES_ON_S = 10.0
# API processes say so as often; one that is starved says so later.
NO_API_AFTER_S = 20.0
_FORGET_AFTER_S = 86_400.0


class AsOf(NamedTuple):
    """Up to when (Unix time) all is processed, None where no consumer has said so yet.

    `behind_s` are the seconds since then, and `is_refused` says whether pushes are refused.
    """

    at_s: float | None
    behind_s: float = 0.0
    is_refused: bool = False

    @property
    def is_behind(self) -> bool:
        """Whether it is too long ago to say what a job does now."""
        return self.behind_s >= BEHIND_AFTER_S or self.is_refused


@dataclass(frozen=True, slots=True)
class Refusal:
    """Since when pushes of a job have been refused, without a pause, and when one was last."""

    since_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Processed:
    """Up to when data were processed, at the Unix time `now_s`, by shard and by job.

    `unheard_until_s` is a time up to when perhaps no API process took the workers' data.
    """

    now_s: float
    by_shard: Sequence[float | None] = ()
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    unheard_until_s: float | None = None

    def of(self, job_id: str, last_data_s: float | None = None) -> AsOf:
        """Of this job, whose newest data was received at `last_data_s`.

        Up to then it is processed, if no consumer has said so yet.
        """
        if not self.by_shard:
            return AsOf(None)
        saved_s = self.by_shard[shard_of(job_id, len(self.by_shard))]
        of_shard = self._as_of([last_data_s if saved_s is None else saved_s])
        return self._but_refused(of_shard, _names_of(job_id), last_data_s)

    @property
    def of_service(self) -> AsOf:
        """Of the shard that is furthest behind, or since the service takes no pushes."""
        of_shards = self._as_of(self.by_shard)
        return self._but_refused(of_shards, (EVERY_JOB, ANY_JOB), self.now_s)

    @property
    def of_shards(self) -> list[AsOf]:
        """Of each shard."""
        return [self._as_of([at_s]) for at_s in self.by_shard]

    def is_excused(self, job_id: str, registered_s: float) -> bool:
        """Whether workers of this job may have sent what could not be taken until now."""
        if self.unheard_until_s is not None and registered_s < self.unheard_until_s:
            return True
        return any(name in self.refused for name in _names_of(job_id))

    def _as_of(self, times_s: Sequence[float | None]) -> AsOf:
        known_s = [at_s for at_s in times_s if at_s is not None]
        if not known_s:
            return AsOf(None)
        at_s = min(known_s)
        return AsOf(at_s, max(0.0, self.now_s - at_s))

    def _but_refused(
        self, of_shards: AsOf, names: Collection[str], last_data_s: float | None
    ) -> AsOf:
        """No later than the first of the refusals under these names that go on."""
        refused = [self.refused[name] for name in names if name in self.refused]
        times_s = [refusal.since_s for refusal in refused if self._goes_on(refusal, last_data_s)]
        if not times_s:
            return of_shards
        if of_shards.at_s is not None:
            times_s.append(of_shards.at_s)
        return self._as_of(times_s)._replace(is_refused=True)

    def _goes_on(self, refusal: Refusal, last_data_s: float | None) -> bool:
        if self.now_s - refusal.last_s < _GOES_ON_S:
            return True
        return last_data_s is None or last_data_s <= refusal.last_s


def _names_of(job_id: str) -> tuple[str, str, str]:
    """By which its refusals are saved: its own, all of its project's, and all."""
    return job_id, job_key(project_of(job_id), EVERY_JOB), EVERY_JOB


def read(conn: Connection, *, num_shards: int, now_s: float) -> Processed:
    """Up to when data are processed now."""
    saved = dict(conn.execute(select(shards.c.shard, shards.c.as_of_s)).all())
    recent = select(refusals).where(
        refusals.c.last_s > now_s - RETRIED_WITHIN_S,
        refusals.c.last_s <= now_s + RETRIED_WITHIN_S,  # not by a clock that has been set back
    )
    return Processed(
        now_s,
        [saved.get(shard) for shard in range(num_shards)],
        {row.job_id: Refusal(row.since_s, row.last_s) for row in conn.execute(recent)},
        _unheard_until_s(conn, now_s),
    )


def _unheard_until_s(conn: Connection, now_s: float) -> float | None:
    """Until when there may have been no API process, if workers may not have tried again since.

    Each of them says every few seconds that it watches the consumers.
    """
    names = ("consumers", "api")
    rows = conn.execute(select(service_watches).where(service_watches.c.name.in_(names)))
    known = {row.name: row for row in rows}
    if "consumers" not in known or known["consumers"].checked_s is None:
        return None
    if now_s - known["consumers"].checked_s > NO_API_AFTER_S:
        return now_s
    # There is one again since then: `note_consumers`.
    back_s = known["api"].since_s if "api" in known else None
    return back_s if back_s is not None and 0 <= now_s - back_s < RETRIED_WITHIN_S else None


def note_taken(
    conn: Connection, owner: str, before_s: Mapping[int, float], *, now_s: float
) -> None:
    """Save how many seconds before now all batches of these shards were taken.

    Shards that another consumer holds by now are left unchanged.
    """
    held = update(shards).where(shards.c.shard == bindparam("of_shard"), shards.c.owner == owner)
    rows = [
        {"of_shard": shard, "at_s": now_s - seconds} for shard, seconds in sorted(before_s.items())
    ]
    if rows:
        conn.execute(held.values(as_of_s=bindparam("at_s")), rows)


def note_refused(conn: Connection, job_ids: Collection[str], *, now_s: float) -> None:
    """Save that pushes of these jobs have been refused just now, of `EVERY_JOB` or `ANY_JOB`."""
    if not job_ids:
        return
    statement = insert(conn, refusals)
    was_recent = refusals.c.last_s > now_s - RETRIED_WITHIN_S
    since_s = case((was_recent, func.coalesce(refusals.c.since_s, now_s)), else_=now_s)
    statement = statement.on_conflict_do_update(
        index_elements=["job_id"], set_={"since_s": since_s, "last_s": now_s}
    )
    rows = [{"job_id": name, "since_s": now_s, "last_s": now_s} for name in sorted(job_ids)]
    conn.execute(statement, rows)
    conn.execute(delete(refusals).where(refusals.c.last_s < now_s - _FORGET_AFTER_S))
