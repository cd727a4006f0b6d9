"""Which steps a job is to record, as workers are told, and from which step on all can know it."""

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Any

from app.ingest.wire import LAST_STEP
from app.store import steps
from app.store.engine import Connection
from app.store.jobs import JobRecord
from app.store.recordings import Plan, Sample

# Within these, every rank has sent something and heard of the plan: workers send every few
# seconds, this process looks again after two, and the consumers may be a little behind.
LEAD_S = 30.0
LEAD_STEPS = 100  # where nobody knows how long a step takes
LEAST_LEAD_STEPS = 10
_STEPS_LOOKED_AT = 32

EVERYTHING = Sample()  # before anybody has made a plan
_NOBODYS = Plan(0, 0, 0, EVERYTHING, 0.0, "")


def plan_out(plan: Plan) -> dict[str, Any]:
    """A plan as workers are told."""
    sample = plan.sample
    return {
        "version": plan.version,
        "from_step": plan.from_step,
        "enabled": sample.enabled,
        "every": sample.every,
        "steps": sample.steps,
    }


def told(plans: Sequence[Plan], last_step: int | None) -> dict[str, Any] | None:
    """The newest plan of a run; until it has begun, with the `earlier` ones. None without any.

    A rank that was not heard for a while may have missed those that hold until then.
    """
    if not plans:
        return None
    *earlier, newest = plans
    if not earlier or has_begun(newest, last_step):
        return plan_out(newest)
    return plan_out(newest) | {"earlier": [plan_out(each) for each in earlier]}


def newest_plan(job: JobRecord) -> Plan:
    """What holds, or will; of version 0 where nobody has made one."""
    return job.plans[-1] if job.plans else _NOBODYS


def will_come_to(sample: Sample, last_step: int | None) -> int | None:
    """The next step of which anything can be heard, after this one; None where none is known.

    Of a job that records no step nothing is heard: it may have come to any.
    """
    if last_step is None:
        return None
    if not sample.enabled:
        return LAST_STEP
    after = last_step + 1
    return after if after % sample.every < sample.steps else after + -after % sample.every


def has_begun(plan: Plan, last_step: int | None) -> bool:
    """Whether some rank is known to have come to the plan's first step."""
    return plan.from_step == 0 or (last_step is not None and plan.from_step <= last_step)


def step_to_go_by(job: JobRecord) -> int | None:
    """The newest step known, by which later ones are judged; None where it says nothing.

    A job that was told to record no step may have come to any when it records again.
    """
    return job.last_step if all(plan.sample.enabled for plan in _in_force(job)) else None


def first_step_for_all(conn: Connection, job: JobRecord, now_s: float) -> int:
    """A step that no rank comes to before it has heard of a plan that is made now.

    0 in a run of which no step was heard, which may be its first or any: its ranks go by the plan
    as soon as they hear, and a few steps are not whole.
    """
    if job.last_step is None:
        return 0
    step_s = _step_s(conn, job)
    lead = LEAD_STEPS
    if step_s:
        lead = max(LEAST_LEAD_STEPS, ceil((_unseen_s(job, now_s) + LEAD_S) / step_s))
    # A plan of a later step that was made before never holds: this one has a higher version.
    return job.last_step + 1 + lead


def _unseen_s(job: JobRecord, now_s: float) -> float:
    """For how long the job may have gone on without a word: as it has been told to.

    One that records nothing says every few seconds that it goes on, until it stalls.
    """
    is_seen = all(plan.sample == EVERYTHING for plan in _in_force(job))
    if job.last_data_s is None or is_seen or job.stalled_since_s is not None:
        return 0.0
    return max(0.0, now_s - job.last_data_s)


def _in_force(job: JobRecord) -> list[Plan]:
    """What the job goes by now, as far as anybody knows, and all that is to come."""
    begun = [plan for plan in job.plans if has_begun(plan, job.last_step)]
    to_come = [plan for plan in job.plans if not has_begun(plan, job.last_step)]
    return [*begun[-1:], *to_come]


def _step_s(conn: Connection, job: JobRecord) -> float | None:
    """How long a step of the run takes; None where no step is known."""
    rows = steps.series(conn, job.job_id, epoch=job.epoch, limit=_STEPS_LOOKED_AT)
    times = [row.recorded_s for row in rows if row.recorded_s is not None]
    return median(times) if times else None
