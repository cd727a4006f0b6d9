"""Recording plans: which steps a job is to record, each plan from a step on.

Of a run's plans, the begun one with the highest version is in effect. A plan made in an earlier
run applies to a later one from its first step on.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from app.store.database import insert_or_replace
from app.store.tables import recordings

# Ranks get a plan within seconds: they need no more earlier ones.
MAX_PLANS = 8


@dataclass(frozen=True, slots=True)
class StepSample:
    """The first `steps` of every `every` steps, by step number; no step if it is not enabled."""

    enabled: bool = True
    every: int = 1
    steps: int = 1


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """A sample from a step of the run `epoch` on, and who set it when (Unix time)."""

    version: int
    epoch: int
    from_step: int
    sample: StepSample
    set_s: float
    set_by: str


def plans_of_run(plans: Sequence[RecordingPlan], epoch: int) -> list[RecordingPlan]:
    """The plans that apply to a run, ascending by version."""
    own = [plan for plan in plans if plan.epoch == epoch]
    earlier = [plan for plan in plans if plan.epoch < epoch]
    return [*(replace(plan, epoch=epoch, from_step=0) for plan in earlier[-1:]), *own]


def of_job(conn: Connection, job_id: str) -> list[RecordingPlan]:
    """A job's last plans, ascending by version."""
    return parse_plans(conn.scalar(select(recordings.c.plans).filter_by(job_id=job_id)))


def add(
    conn: Connection,
    job_id: str,
    epoch: int,
    sample: StepSample,
    *,
    from_step: int,
    now_s: float,
    by: str,
) -> RecordingPlan:
    """Add a plan to the job, which `runs.current_epoch` has locked in the same transaction."""
    before = of_job(conn, job_id)
    version = before[-1].version + 1 if before else 1
    plan = RecordingPlan(version, epoch, from_step, sample, now_s, by)
    kept = [asdict(known) for known in [*before, plan][-MAX_PLANS:]]
    insert_or_replace(conn, recordings, [{"job_id": job_id, "plans": kept}])
    return plan


def parse_plans(rows: Sequence[dict[str, Any]] | None) -> list[RecordingPlan]:
    """The plans as the table has them."""
    return [RecordingPlan(**row | {"sample": StepSample(**row["sample"])}) for row in rows or ()]
