"""How the ranks of a run ended, and the end of the job that follows from it.

A job that was ended by a request (`runs.end`) stays as it is; an end by reports may be revised by
a later report, and is taken back when data comes again, or a rank registers again.
"""

from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, and_, case, delete, select, true

from app.errors import EpochSuperseded, InvalidRequest
from app.store import hosts
from app.store.database import of_run
from app.store.runs import current_epoch, unfinished, update_run
from app.store.tables import rank_exits, runs
from app.trace.exits import RankExit, exits_of, judge

# With no report and no data for so long, the ranks that have not reported are not waited for.
QUIET_S = 20.0
# Data so long after the end shows that the job goes on. What came before it was on its way.
GOES_ON_AFTER_S = 60.0


def add(conn: Connection, job_id: str, epoch: int, report: RankExit) -> None:
    """Save a rank's exit, and end the job if that was the last one.

    Raises:
        JobNotFound: it never registered.
        EpochSuperseded: a newer run has registered.
        InvalidRequest: the job has no such rank.
    """
    current = current_epoch(conn, job_id, for_update=True)
    if current != epoch:
        raise EpochSuperseded(job_id, epoch, current)
    run = conn.execute(select(runs).where(*of_run(runs, job_id, epoch))).one()
    num_workers = run.dp_size * run.pp_size
    world_size = num_workers * run.tp_size * run.dsp_size
    if report.dp_rank >= run.dp_size or report.stage >= run.pp_size or report.rank >= world_size:
        raise InvalidRequest(f"the job has no rank {report.rank} at this position")
    key = {"job_id": job_id, "epoch": epoch, "rank": report.rank}
    is_new = not conn.execute(delete(rank_exits).filter_by(**key)).rowcount
    conn.execute(rank_exits.insert().values(**key | asdict(report)))
    num_exits = (run.num_exits or 0) + is_new
    values = {"exit_reported_s": report.at_s, "num_exits": num_exits}
    conn.execute(update_run(job_id, epoch).values(values))
    if num_exits >= num_workers:
        decide(conn, job_id, epoch, is_quiet=False)


def decide(conn: Connection, job_id: str, epoch: int, *, is_quiet: bool) -> bool:
    """End the run if its reports say so; whether that changed anything.

    `is_quiet`: ranks that have not reported are not waited for.
    """
    run = conn.execute(select(runs).where(*of_run(runs, job_id, epoch))).one_or_none()
    if run is None or (run.ended_s is not None and run.ended_as is None):
        return False
    reports = conn.execute(select(rank_exits).where(*of_run(rank_exits, job_id, epoch)))
    exits = exits_of(dict(row._mapping) for row in reports)
    seen = list(hosts.load(conn, job_id, epoch).items())
    num_workers = run.dp_size * run.pp_size
    end = judge(exits, num_workers, pp_size=run.pp_size, is_quiet=is_quiet, seen=seen)
    if end is None:
        return False
    values = {"ended_s": end.at_s, "ended_as": end.ended_as, "end_cause": end.end_cause}
    conn.execute(update_run(job_id, epoch).values(**values))
    return True


def quiet_since_exits(conn: Connection, *, now_s: float) -> list[tuple[str, int]]:
    """Unfinished runs of which some ranks have ended, and nothing has come for `QUIET_S`."""
    heard_s = case(
        (runs.c.last_data_s > runs.c.exit_reported_s, runs.c.last_data_s),
        else_=runs.c.exit_reported_s,
    )
    return unfinished(conn, runs.c.exit_reported_s.is_not(None), heard_s <= now_s - QUIET_S)


def goes_on(conn: Connection, job_id: str, epoch: int, *, received_s: float) -> None:
    """Take back an end by reports, as a batch of the run was received long after it."""
    _take_back(conn, job_id, epoch, runs.c.ended_s < received_s - GOES_ON_AFTER_S)


def begins_again(conn: Connection, job_id: str, epoch: int) -> None:
    """Take back an end by reports, as a rank has registered the run after it.

    So does a restarted job that keeps its run key, as with a spool.
    """
    _take_back(conn, job_id, epoch, true())


def _take_back(conn: Connection, job_id: str, epoch: int, condition: ColumnElement[bool]) -> None:
    is_by_reports = and_(runs.c.ended_as.is_not(None), condition)
    values = dict.fromkeys(("ended_s", "ended_as", "end_cause", "exit_reported_s"))
    taken_back = update_run(job_id, epoch).where(is_by_reports).values(**values, num_exits=0)
    if conn.execute(taken_back).rowcount:
        conn.execute(delete(rank_exits).where(*of_run(rank_exits, job_id, epoch)))
