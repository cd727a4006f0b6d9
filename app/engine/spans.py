"""From when to when was each step?"""

import numpy as np

from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.trace.window import Floats


def step_spans(start_s: Floats, duration_s: Floats, num_steps: int) -> tuple[Floats, Floats]:
    """Earliest start and latest end of every step over all workers, [steps] seconds.

    Shapes: `start_s` and `duration_s` [ops, lanes], lane = dp_rank * steps + step position.
    """
    parts = in_parallel(
        start_s.size,
        start_s.shape[0],
        lambda first, end: _spans(start_s, duration_s, num_steps, first, end),
    )
    earliest_s, latest_s = (np.stack(part) for part in zip(*parts, strict=True))
    return earliest_s.min(axis=0), latest_s.max(axis=0)


@kernel
def _spans(start_s, duration_s, num_steps, first, end):  # type: ignore[no-untyped-def]
    num_lanes = start_s.shape[1]
    earliest_s, latest_s = np.full(num_lanes, np.inf), np.full(num_lanes, -np.inf)
    for op in range(first, end):
        began_s, took_s = start_s[op], duration_s[op]
        for lane in range(num_lanes):
            earliest_s[lane] = min(earliest_s[lane], began_s[lane])
            latest_s[lane] = max(latest_s[lane], began_s[lane] + took_s[lane])
    first_s, last_s = np.full(num_steps, np.inf), np.full(num_steps, -np.inf)
    for lane in range(num_lanes):
        step = lane % num_steps
        first_s[step] = min(first_s[step], earliest_s[lane])
        last_s[step] = max(last_s[step], latest_s[lane])
    return first_s, last_s
