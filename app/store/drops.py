"""What the recorders of a run have dropped before it was sent, as far as they have said so."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from app.store.tables import drops
from app.store.upsert import replace

MAX_WORST = 8  # workers that are told of without looking at all of them
_MOST = 2**53  # of any sum, which a recorder may say anything of: every JSON reader holds it

Dropped = tuple[int, int, int, int]  # rank, dp_rank, stage, operations


class WorkerDrops(NamedTuple):
    """Operations that the recorders of one worker have dropped."""

    dp_rank: int
    stage: int
    dropped: int


class Drops(NamedTuple):
    """Operations dropped in a run, by how many workers, and the few that dropped most."""

    total: int
    num_workers: int
    worst: Sequence[WorkerDrops]


def save(conn: Connection, job_id: str, epoch: int, by_rank: Sequence[Dropped]) -> None:
    """Save what each rank of a run has said, over what it said before."""
    found = _by_worker(by_rank)
    values = {
        "total": found.total,
        "num_workers": found.num_workers,
        "worst": [list(each) for each in found.worst],
        "by_rank": [list(each) for each in by_rank],
    }
    replace(conn, drops, [{"job_id": job_id, "epoch": epoch, **values}])


def of_worker(conn: Connection, job_id: str, epoch: int, dp_rank: int, stage: int) -> int | None:
    """What the recorders of one worker have dropped; None where none of them has said."""
    query = select(drops.c.by_rank).where(drops.c.job_id == job_id, drops.c.epoch == epoch)
    rows: list[Dropped] = conn.execute(query).scalar_one_or_none() or []
    own = [dropped for _, *worker, dropped in rows if worker == [dp_rank, stage]]
    return min(sum(own), _MOST) if own else None


def _by_worker(by_rank: Sequence[Dropped]) -> Drops:
    """Sums of the ranks that record one worker's work; workers that dropped none are left out."""
    sums: Counter[tuple[int, int]] = Counter()
    for _, dp_rank, stage, dropped in by_rank:
        sums[dp_rank, stage] += dropped
    workers = [WorkerDrops(*each, min(n, _MOST)) for each, n in sums.items() if n]
    worst = sorted(workers, key=lambda each: (-each.dropped, each.dp_rank, each.stage))
    return Drops(min(sums.total(), _MOST), len(workers), worst[:MAX_WORST])
