"""Windows of simulated jobs that lost some operations, or whole workers."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.synth.job import SimulatedJob
from app.synth.record import RecordedSteps
from app.trace.completeness import completeness
from app.trace.window import PartialSteps, Trace, Window


def rows_where(trace: Trace, **where: int) -> NDArray[np.bool_]:
    """[ops], rows whose columns have these values."""
    chosen = np.ones(trace.num_ops, np.bool_)
    for name, value in where.items():
        chosen &= getattr(trace, name) == value
    return chosen


def uneven_trace(
    made: SimulatedJob, steps: list[int], fewer: dict[int, int], num_microbatches: int
) -> Trace:
    """The steps with fewer micro-batches on some dp ranks; `fewer` has their numbers by dp rank."""
    trace = made.make(steps)
    of_rank = np.full(made.parallelism.dp_size, num_microbatches)
    of_rank[list(fewer)] = list(fewer.values())
    return trace.select(trace.mb_id < of_rank[trace.dp_rank])


def lossy_window(made: SimulatedJob, trace: Trace) -> Window:
    """The window of a trace that lacks rows, before anything is imputed."""
    known = completeness(trace, made.parallelism)
    rows = np.isin(trace.step, [each.step for each in known.skipped])
    return Window(
        made.job,
        1,
        int(trace.step.min()),
        known.steps,
        trace.select(~rows),
        known.skipped,
        "complete",
        partial=PartialSteps(known.skipped, trace.select(rows)) if known.skipped else None,
    )


def without_ranks(record: RecordedSteps, ranks: list[int], *, from_step: int = 0) -> RecordedSteps:
    """The record without what these ranks recorded from a step on."""
    keep = ~(np.isin(record.rank, ranks) & (record.step >= from_step))
    columns: dict[str, Any] = {name: each[keep] for name, each in record.columns().items()}
    return replace(record, **columns)
