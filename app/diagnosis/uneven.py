"""Whose sequences are uneven? Where lengths are sent, not every replica's need be."""

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.trace.window import Floats, Trace

Flags = NDArray[np.bool_]

# Sums of squares nearer than this are alike: packed rows are never quite full.
_ALIKE = 1.05


def uneven_replicas(case: Case) -> Flags | None:
    """[dp], those whose sequences differ; None where that is all, or nobody, or not known.

    One that has not told its lengths is none of them; it may have any.
    """
    trace = case.replay.window.trace
    if trace.seq_len_sq is None:
        return None
    least, most = _extremes(trace, trace.seq_len_sq, case.parallelism.dp_size)
    # Rows are of a usual length, or longer; a replica that has long ones only is no exception.
    limit = _ALIKE * least.min()
    are_alike, are_uneven = (most > 0) & (most <= limit), most > limit
    return are_uneven if are_alike.any() and are_uneven.any() else None


def _extremes(trace: Trace, squares: NDArray[np.int64], dp_size: int) -> tuple[Floats, Floats]:
    """[dp], the least and the most that each replica has told; infinity and 0 where nothing."""
    least, most = np.full(dp_size, np.inf), np.zeros(dp_size)
    told = squares > 0  # a micro-batch of padding alone says nothing of the others
    np.minimum.at(least, trace.dp_rank[told], squares[told])
    np.maximum.at(most, trace.dp_rank[told], squares[told])
    return least, most
