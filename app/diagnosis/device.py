"""What a worker's GPU said of itself, beside what its peers' GPUs did."""

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.grouping import Worker
from app.trace.window import Ints, Trace

_NAMES = ("sm_clock_mhz", "temperature_c", "power_w")


def device_figures(case: Case, worker: Worker, steps: Ints) -> dict[str, float]:
    """Medians over some steps of clock, temperature and power, as far as the client sends them.

    The worker's own, and those of the same stage's other dp ranks; of errors that its driver has
    logged the last one's number, `xid`.
    """
    trace, found = case.replay.window.trace, dict[str, float]()
    dp_rank, stage = worker
    columns = {name: getattr(trace, name) for name in _NAMES}
    told = {name: column for name, column in columns.items() if column is not None}
    if not told and trace.xid is None:
        return found
    rows = np.flatnonzero((trace.stage == stage) & np.isin(trace.step, steps))
    is_mine = trace.dp_rank[rows] == dp_rank
    for name, column in told.items():
        is_told = column[rows] >= 0
        for whose, chosen in (("", is_mine & is_told), ("_of_peers", ~is_mine & is_told)):
            if chosen.any():
                found[name + whose] = float(np.median(column[rows][chosen]))
    return found | _last_error(trace, rows[is_mine])


def _last_error(trace: Trace, rows: Ints) -> dict[str, float]:
    """Of the rows' errors that of the latest step; none where no error was logged."""
    if trace.xid is None or not (rows := rows[trace.xid[rows] > 0]).size:
        return {}
    return {"xid": float(trace.xid[rows[trace.step[rows].argmax()]])}
