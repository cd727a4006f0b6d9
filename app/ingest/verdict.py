"""Is a step complete? If not, why not, and whose fault is it?"""

from collections.abc import Mapping

from app.ingest.roll import Roll
from app.ingest.step import OpenStep, Sender, SettledStep, twice_recorded
from app.trace.job import Job
from app.trace.window import SkippedStep, StepKind

MAX_NAMED = 8
REASONS: dict[StepKind, str] = {
    "checkpoint": "a checkpoint was saved in it",
    "eval": "it was an evaluation, no training",
    "first": "it was among the first, which have start-up work in them",
}


def settled(step: OpenStep, job: Job, roll: Roll, when: str) -> SettledStep:
    """The step with what has come of it; `when` ends the sentence about who did not report."""
    senders = step.heard()
    kind = min(step.kinds, default=None)
    # Of what is not analysed no operation is kept: an evaluation may take thousands of steps.
    table = step.table({} if kind else senders, job.parallelism.pp_size)
    absent = roll.ranks(_absent(senders, job.parallelism.num_workers))
    mismatched = roll.ranks(_mismatched(senders))
    reasons = [REASONS[each] for each in sorted(step.kinds)]
    if absent:
        reasons.append(f"{_named(absent)} did not report the step {when}")
    if mismatched:
        reasons.append(f"{_named(mismatched)} sent another number of operations than declared")
    if not reasons and (ranks := tuple(twice_recorded(table))):
        reasons.append(f"{_named(ranks)} sent two operations of the same type and seq_id")
    if not reasons:
        return SettledStep(step.step, table)
    missing = tuple(sorted({*absent, *mismatched}))
    skipped = SkippedStep(step.step, "; ".join(reasons), missing, kind)
    return SettledStep(step.step, table, skipped, None if kind else step)


def settled_before(step: OpenStep, job: Job, skipped: SkippedStep | None) -> SettledStep:
    """The same of a step whose verdict is known from before a crash."""
    is_left_out = skipped is not None and skipped.kind is not None
    table = step.table({} if is_left_out else step.heard(), job.parallelism.pp_size)
    is_open = skipped is not None and not is_left_out
    return SettledStep(step.step, table, skipped, step if is_open else None)


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
