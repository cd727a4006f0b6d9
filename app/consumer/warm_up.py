"""Compile the engine's kernels before the first window needs them."""

import numpy as np

from app.engine.report import analyse
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Trace, Window


def warm_up() -> None:
    """Analyses a step of one operation on each of two workers; kernels are then in the cache."""
    workers = np.arange(2)
    ops = np.repeat(OP_CODES["optimizer"], 2).astype(np.int16)
    zeros, seconds = np.zeros(2, np.int64), np.ones(2)
    trace = Trace(
        zeros, workers, zeros, workers, ops, zeros, zeros - 1, zeros - 1, seconds, seconds
    )
    job = Job.of("warm-up", Parallelism(2, 1))
    analyse(Window(job, 1, 0, (0,), trace))
