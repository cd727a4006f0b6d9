"""Where do steps begin, and how long is the time between them?"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.features import Features
from app.engine.grid import Grid
from app.trace.window import Floats, Ints


def first_start_s(grid: Grid) -> Floats:
    """[steps], the first start of an operation that is no receive."""
    template = grid.template
    rows = np.flatnonzero(~template.op_types.is_receive[template.optype])
    if not rows.size:
        return grid.spans_s[0]
    _, first = np.unique(template.stage[rows], return_index=True)
    return np.asarray(grid.start_s[rows[first]].reshape(-1, grid.num_steps).min(axis=0))


def first_rows(group: Features) -> list[Ints]:
    """By stage, its operations up to the first computation, as they were recorded."""
    template = group.replayer.template
    firsts = []
    for stage in range(group.replayer.pp_size):
        rows = np.flatnonzero(template.stage == stage)
        computes = np.asarray(template.computes[stage], np.int64)
        firsts.append(rows[rows <= computes.min()] if computes.size else rows[:1])
    return firsts


def gaps_s(case: Case, begin_s_of: Callable[[Grid], Floats]) -> Floats:
    """[steps], seconds from the end of the recorded step before to a begin in the step.

    Negative where they overlap, NaN for the first step and without absolute times. `begin_s_of`
    returns [steps of the grid] in each step's own times.
    """
    begins_s, ends_s = np.full(case.steps.size, np.nan), np.full(case.steps.size, np.nan)
    for group in case.groups:
        grid = group.replayer.grid
        if grid.origin_s is not None:
            begins_s[group.positions] = grid.origin_s + begin_s_of(grid)
            ends_s[group.positions] = grid.origin_s + grid.spans_s[1]
    before_s = np.full(case.steps.size, np.nan)
    before_s[1:] = begins_s[1:] - ends_s[:-1]
    return before_s


@evidence
def outside_s(case: Case) -> Floats:
    """[steps], seconds before each step that belong to none (app/engine/steady_state.py)."""
    before_s = np.maximum(0.0, np.nan_to_num(gaps_s(case, lambda grid: grid.began_s)))
    return np.where(follows_recorded(case), before_s, 0.0)


def follows_recorded(case: Case) -> NDArray[np.bool_]:
    """[steps], whether the step before was recorded."""
    return np.asarray(np.diff(case.steps, prepend=case.steps[0]) == 1)


def total_s(case: Case) -> float:
    """Recorded seconds of the steps, and of the time between successive ones."""
    return float((case.report.recorded_s + outside_s(case)).sum())
