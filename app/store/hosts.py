"""Which machine each worker of a run is on."""

from collections.abc import Mapping

from sqlalchemy import Connection, select

from app.store.tables import hosts
from app.store.upsert import replace

Worker = tuple[int, int]  # dp_rank, stage


def save(conn: Connection, job_id: str, epoch: int, names: Mapping[Worker, str]) -> None:
    """Save the hosts of a run's workers, over what was known of them."""
    rows = [[*worker, name] for worker, name in sorted(names.items())]
    replace(conn, hosts, [{"job_id": job_id, "epoch": epoch, "names": rows}])


def load(conn: Connection, job_id: str, epoch: int) -> dict[Worker, str]:
    """Host by (dp_rank, stage); workers that have not said theirs are left out."""
    query = select(hosts.c.names).where(hosts.c.job_id == job_id, hosts.c.epoch == epoch)
    rows = conn.execute(query).scalar_one_or_none() or []
    return {(dp_rank, stage): name for dp_rank, stage, name in rows}
