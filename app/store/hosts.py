"""Which machine each worker of a run is on, and where that stands."""

from collections.abc import Mapping

from sqlalchemy import Connection, select

from app.store.tables import hosts
from app.store.upsert import replace
from app.trace.placement import Placement

Worker = tuple[int, int]  # dp_rank, stage


def save(
    conn: Connection,
    job_id: str,
    epoch: int,
    names: Mapping[Worker, str],
    placements: Mapping[Worker, Placement] | None = None,
) -> None:
    """Save the hosts and placements of a run's workers, over what was known of them."""
    rows = [[*worker, name] for worker, name in sorted(names.items())]
    placed = [[*worker, *each] for worker, each in sorted((placements or {}).items())]
    values = {"names": rows, "placements": placed or None}
    replace(conn, hosts, [{"job_id": job_id, "epoch": epoch, **values}])


def load(conn: Connection, job_id: str, epoch: int) -> dict[Worker, str]:
    """Host by (dp_rank, stage); workers that have not said theirs are left out."""
    query = select(hosts.c.names).where(hosts.c.job_id == job_id, hosts.c.epoch == epoch)
    rows = conn.execute(query).scalar_one_or_none() or []
    return {(dp_rank, stage): name for dp_rank, stage, name in rows}


def placements(conn: Connection, job_id: str, epoch: int) -> dict[Worker, Placement]:
    """Rack and switch by (dp_rank, stage); workers that have not said theirs are left out."""
    query = select(hosts.c.placements).where(hosts.c.job_id == job_id, hosts.c.epoch == epoch)
    rows = conn.execute(query).scalar_one_or_none() or []
    return {(dp_rank, stage): Placement(rack, switch) for dp_rank, stage, rack, switch in rows}
