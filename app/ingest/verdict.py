"""Is a step complete? If not, why not, and whose fault is it?"""

from collections.abc import Mapping

from app.ingest.roll import Roll
from app.ingest.step import OpenStep, Sender, SettledStep, twice_recorded
from app.trace.job import Job
from app.trace.window import SkippedStep

MAX_NAMED = 8


def settled(step: OpenStep, job: Job, roll: Roll, when: str) -> SettledStep:
    """The step with what has come of it; `when` ends the sentence about who did not report."""
    senders = step.heard()
    table = step.table(senders, job.parallelism.pp_size)
    absent = roll.ranks(_absent(senders, job.parallelism.num_workers))
    mismatched = roll.ranks(_mismatched(senders))
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
    skipped = SkippedStep(step.step, "; ".join(reasons), missing)
    return SettledStep(step.step, table, skipped, step)


def _absent(senders: Mapping[int, Sender], num_workers: int) -> list[int]:
    """Workers that have not declared the step, ascending."""
    declared = {worker for worker, each in senders.items() if each.num_declared is not None}
    if len(declared) == num_workers:
        return []
    return [worker for worker in range(num_workers) if worker not in declared]


def _mismatched(senders: Mapping[int, Sender]) -> list[int]:
    """Workers of which more or fewer operations came than they declared, ascending."""
    return sorted(
        worker
        for worker, each in senders.items()
        if each.num_declared is not None and each.num_arrived != each.num_declared
    )


def _named(ranks: tuple[int, ...]) -> str:
    names = ", ".join(str(rank) for rank in ranks[:MAX_NAMED])
    others = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {names}{others}"
