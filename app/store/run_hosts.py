"""Which runs a host was part of."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, and_, or_, select

from app.store.projects import owns
from app.store.tables import run_hosts, runs
from app.store.upsert import add_new

# The greatest character that is no surrogate: what begins with a text is below text + this.
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class HostRun:
    """A run that had workers on a host."""

    job_id: str
    epoch: int
    name: str
    registered_s: float
    ended_s: float | None
    superseded_s: float | None
    last_data_s: float | None
    dp_size: int
    pp_size: int

    @property
    def num_workers(self) -> int:
        """Of the whole run, on whatever host."""
        return self.dp_size * self.pp_size


_COLUMNS = tuple(runs.c[name] for name in HostRun.__slots__)


def add(conn: Connection, job_id: str, epoch: int, hosts: Iterable[str]) -> None:
    """The run has workers on these hosts; ones that are known stay."""
    names = sorted(set(hosts))
    add_new(conn, run_hosts, [{"job_id": job_id, "epoch": epoch, "host": each} for each in names])


def jobs_on(conn: Connection, project: str, beginning: str) -> set[str]:
    """Keys of a project's jobs that have, or had, a host whose name begins like this."""
    host = run_hosts.c.host
    spellings = {beginning, beginning.lower()}
    begins = or_(*(and_(host >= each, host < each + _LAST) for each in sorted(spellings)))
    query = select(run_hosts.c.job_id).where(begins, owns(project, run_hosts.c.job_id)).distinct()
    return set(conn.execute(query).scalars())


def declared_elsewhere(conn: Connection, project: str, hosts: Collection[str]) -> set[str]:
    """Those of these hosts that runs of other projects name, too, which are not over."""
    same_run = and_(run_hosts.c.job_id == runs.c.job_id, run_hosts.c.epoch == runs.c.epoch)
    query = select(run_hosts.c.host).select_from(run_hosts.join(runs, same_run)).distinct()
    query = query.where(run_hosts.c.host.in_(sorted(hosts)), ~owns(project, runs.c.job_id))
    query = query.where(runs.c.ended_s.is_(None), runs.c.superseded_s.is_(None))
    return set(conn.execute(query).scalars())


def runs_on(conn: Connection, project: str, host: str, *, limit: int) -> list[HostRun]:
    """A project's runs on a host, those that began last first."""
    same_run = and_(run_hosts.c.job_id == runs.c.job_id, run_hosts.c.epoch == runs.c.epoch)
    query = select(*_COLUMNS).select_from(run_hosts.join(runs, same_run))
    query = query.where(run_hosts.c.host == host, owns(project, runs.c.job_id))
    query = query.order_by(runs.c.registered_s.desc(), runs.c.job_id, runs.c.epoch.desc())
    return [HostRun(*row) for row in conn.execute(query.limit(limit))]
