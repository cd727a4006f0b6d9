"""Is a step complete? If not, why not, and whose fault is it?"""

from app.ingest.roll import Roll
from app.ingest.step import OpenStep, SettledStep, twice_recorded
from app.trace.job import Job
from app.trace.window import SkippedStep

MAX_NAMED = 8


def settled(step: OpenStep, job: Job, roll: Roll, when: str) -> SettledStep:
    """The step with what has come of it; `when` ends the sentence about who did not report."""
    table = step.table(job)
    absent = roll.ranks(step.absent(job.parallelism.num_workers))
    mismatched = roll.ranks(step.mismatched())
    reasons = []
    if absent:
        reasons.append(f"{_named(absent)} did not report the step {when}")
    if mismatched:
        reasons.append(f"{_named(mismatched)} sent another number of operations than declared")
    if not reasons and (ranks := tuple(twice_recorded(table))):
        reasons.append(f"{_named(ranks)} sent two operations of the same type and seq_id")
    if not reasons:
        return SettledStep(step.step, table)
    missing = tuple(sorted({*absent, *mismatched}))
    return SettledStep(step.step, table, SkippedStep(step.step, "; ".join(reasons), missing))


def _named(ranks: tuple[int, ...]) -> str:
    names = ", ".join(str(rank) for rank in ranks[:MAX_NAMED])
    others = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {names}{others}"
