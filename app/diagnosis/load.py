"""How much work did each worker have, as far as the client has said?"""

import numpy as np
from numpy.typing import NDArray

from app.engine.replays import WindowReplay
from app.trace.ops import Direction, Kind
from app.trace.window import Floats, Ints, Trace

NAMES = ("tokens", "seq_len_sq")


def load(replay: WindowReplay) -> dict[str, Floats]:
    """{name: [steps, dp, pp]}, means over a worker's forward computations; NaN where not known.

    Names that nobody has sent are left out.
    """
    trace = replay.window.trace
    sent = {name: getattr(trace, name) for name in NAMES}
    if all(column is None for column in sent.values()):
        return {}
    computes = _computes(replay)[trace.optype] & np.isin(trace.step, replay.steps)
    found = {
        name: _means(replay, trace, column, computes & (column >= 0))
        for name, column in sent.items()
        if column is not None
    }
    return {name: means for name, means in found.items() if np.isfinite(means).any()}


def _computes(replay: WindowReplay) -> NDArray[np.bool_]:
    """[codes], forward computations."""
    flags: NDArray[np.bool_] = replay.window.job.op_types.flags(
        lambda spec: spec.kind is Kind.COMPUTE and spec.direction is Direction.FORWARD
    )
    return flags


def _means(replay: WindowReplay, trace: Trace, column: Ints, rows: NDArray[np.bool_]) -> Floats:
    sizes = replay.window.job.parallelism
    shape = (len(replay.steps), sizes.dp_size, sizes.pp_size)
    step = np.searchsorted(np.asarray(replay.steps, np.int64), trace.step[rows])
    cell = np.ravel_multi_index((step, trace.dp_rank[rows], trace.stage[rows]), shape)
    size = int(np.prod(shape))
    count = np.bincount(cell, minlength=size)
    total = np.bincount(cell, weights=column[rows], minlength=size)
    means: Floats = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return means.reshape(shape)
