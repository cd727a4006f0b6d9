"""What a worker's GPU said of itself, beside what its peers' GPUs did."""

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.grouping import Worker
from app.trace.window import Ints

_NAMES = ("sm_clock_mhz", "temperature_c")


def device_figures(case: Case, worker: Worker, steps: Ints) -> dict[str, float]:
    """Medians over some steps of clock and temperature, as far as the client sends them.

    The worker's own, and those of the same stage's other dp ranks.
    """
    trace, found = case.replay.window.trace, dict[str, float]()
    dp_rank, stage = worker
    columns = {name: getattr(trace, name) for name in _NAMES}
    told = {name: column for name, column in columns.items() if column is not None}
    if not told:
        return found
    rows = np.flatnonzero((trace.stage == stage) & np.isin(trace.step, steps))
    is_mine = trace.dp_rank[rows] == dp_rank
    for name, column in told.items():
        is_told = column[rows] >= 0
        for whose, chosen in (("", is_mine & is_told), ("_of_peers", ~is_mine & is_told)):
            if chosen.any():
                found[name + whose] = float(np.median(column[rows][chosen]))
    return found
