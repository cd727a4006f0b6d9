"""Times of all workers by one clock."""

from dataclasses import replace

import numpy as np

from app.engine.clocks.lines import Lines
from app.engine.compiled import kernel
from app.engine.grid import Grid
from app.engine.parallel import in_parallel
from app.trace.window import Ints


def corrected(grid: Grid, found: Lines, began_ns: Ints, host: Ints) -> Grid:
    """The grid by the reference's clock, in the place of what was recorded.

    `began_ns` [steps] is when the steps' times count from, `host` [dp, pp] where workers run.
    A step's times count from the start of the first operation of dp rank 0 then.
    """
    since_ns = began_ns - found.origin_ns
    first_ns = since_ns + np.rint(grid.start_s[0, : grid.num_steps] * 1e9).astype(np.int64)
    first_ns -= found.offset_ns[host[0, grid.template.stage[0]]]
    # The first operation of each stage stands for its worker's clock.
    firsts = np.searchsorted(grid.template.stage, np.arange(grid.template.parallelism.pp_size))
    before_s = grid.start_s[firsts]
    in_parallel(
        grid.start_s.size,
        grid.start_s.shape[0],
        lambda first, end: _correct(
            grid.start_s, grid.duration_s, grid.template.stage, host, since_ns, first_ns,
            found.offset_ns, found.middle_ns, found.half_ns, found.coefficients, first, end,
        ),
    )  # fmt: skip
    # A copy, so that nothing is left that was worked out before.
    return replace(
        grid,
        origin_s=np.asarray(first_ns * 1e-9, np.float64),
        shift_s=grid.start_s[firsts] - before_s,
    )


@kernel
def _correct(  # type: ignore[no-untyped-def]
    start_s, duration_s, stage, host_of, since_ns, first_ns, offset_ns, middle_ns, half_ns,
    coefficients, first, end,
):  # fmt: skip
    num_steps = since_ns.size
    for op in range(first, end):
        for rank in range(host_of.shape[0]):
            host = host_of[rank, stage[op]]
            bias_ns, slope = coefficients[host, 0], coefficients[host, 1] / half_ns
            for step in range(num_steps):
                lane = rank * num_steps + step
                # Whole nanoseconds on the wire: nothing is lost.
                began_ns = since_ns[step] + np.int64(np.rint(start_s[op, lane] * 1e9))
                time_ns = began_ns - offset_ns[host]
                ahead_ns = bias_ns + slope * (time_ns - middle_ns)
                start_s[op, lane] = (np.float64(time_ns - first_ns[step]) - ahead_ns) * 1e-9
                duration_s[op, lane] *= 1.0 - slope
