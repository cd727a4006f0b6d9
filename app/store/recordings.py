"""Which steps a job is to record: plans, each from a step on, the last few of them.

Of the plans of a run, the one with the highest version that has begun holds. A plan that was made
in an earlier run holds from the first step of a later one.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, select

from app.errors import JobNotFound
from app.store.tables import jobs, recordings
from app.store.upsert import replace

# Ranks hear of a plan within seconds: none needs to be told of so many earlier ones.
MAX_PLANS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """The first `steps` of every `every` steps, by step number; no step if it is not enabled."""

    enabled: bool = True
    every: int = 1
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A sample that holds from a step of the run `epoch` on, and who made it when (Unix time)."""

    version: int
    epoch: int
    from_step: int
    sample: Sample
    set_s: float
    set_by: str


def in_run(plans: Sequence[Plan], epoch: int) -> list[Plan]:
    """The plans that a run goes by, ascending by version."""
    own = [plan for plan in plans if plan.epoch == epoch]
    earlier = [plan for plan in plans if plan.epoch < epoch]
    return [*(_from_the_start(each, epoch) for each in earlier[-1:]), *own]


def of_job(conn: Connection, job_id: str) -> list[Plan]:
    """All that are kept of a job, ascending by version; empty where nobody ever made one."""
    query = select(recordings.c.plans).where(recordings.c.job_id == job_id)
    return parsed(conn.execute(query).scalar_one_or_none())


def add(
    conn: Connection,
    job_id: str,
    epoch: int,
    sample: Sample,
    *,
    from_step: int,
    now_s: float,
    by: str,
) -> Plan:
    """Make the job's next plan; to be done between `lock` and the transaction's end."""
    before = of_job(conn, job_id)
    version = before[-1].version + 1 if before else 1
    plan = Plan(version, epoch, from_step, sample, now_s, by)
    kept = [*before, plan][-MAX_PLANS:]
    replace(conn, recordings, [{"job_id": job_id, "plans": [asdict(each) for each in kept]}])
    return plan


def lock(conn: Connection, job_id: str) -> None:
    """Nobody else makes a plan of the job until the open transaction ends.

    Raises:
        JobNotFound: the job never registered.
    """
    query = select(jobs.c.job_id).where(jobs.c.job_id == job_id).with_for_update()
    if conn.execute(query).one_or_none() is None:
        raise JobNotFound(job_id)


def parsed(rows: Sequence[dict[str, Any]] | None) -> list[Plan]:
    """The plans as the table has them."""
    return [Plan(**row | {"sample": Sample(**row["sample"])}) for row in rows or ()]


def _from_the_start(plan: Plan, epoch: int) -> Plan:
    return Plan(plan.version, epoch, 0, plan.sample, plan.set_s, plan.set_by)
