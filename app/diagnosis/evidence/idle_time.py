"""How long are all ranks idle before a step's first computation, and what do rows say of it?

No rank has an operation running from the end of the step before to the first computation of any
rank, but for collectives such as the gather of parameters. That is a fact; why is known only where
the client reports a pause of some rank meanwhile (gc-pause, data-wait): the others may wait for it
in a collective that is not recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.reported_delays import annotations, in_lanes
from app.diagnosis.evidence.step_gaps import (
    first_rows,
    first_start_s,
    follows_recorded,
    gaps_s,
    outside_s,
)
from app.diagnosis.features import Features
from app.trace.ops import COMPUTE_STREAM
from app.trace.window import Floats

# Annotations of the client that say why nobody computes.
REASONS = ("gc-pause", "data-wait")


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Idle time of all ranks before each step's first computation, seconds.

    Shapes: [steps] each. `idle_s` counts from the end of the step before, where that was recorded
    and the times of different steps are known, else from the step's first operation. `reported_s`,
    by annotation, is the part in which the client reports a pause of some rank, `unreported_s` the
    part in which it reports none.
    """

    idle_s: Floats
    reported_s: Mapping[str, Floats]
    unreported_s: Floats


@evidence
def idle_time(case: Case) -> IdleTime:
    """Idle time of all ranks between steps."""
    since_s, until_s = _bounds_s(case)
    length_s = np.maximum(0.0, until_s - since_s)
    busy_s = np.zeros(length_s.size)
    # By annotation, and with all of them: time in which any rank works or reports a pause.
    covered_s = {name: np.zeros(length_s.size) for name in (*REASONS, "")}
    for group in case.groups:
        at = group.positions
        bounds = since_s[at], until_s[at]
        busy = _before_first(group)
        busy_s[at] = _union_s(bounds, busy)
        noted = {name: _noted(case, group, name) for name in REASONS}
        for name, own_s in covered_s.items():
            own_s[at] = busy_s[at]
            parts = [noted[name]] if name else [*noted.values()]
            for position in {position for part in parts for position in part}:
                own = slice(position, position + 1)
                pauses = [part[position] for part in parts if position in part]
                both = [
                    np.concatenate([busy[side][:, own], *(pause[side] for pause in pauses)])
                    for side in (0, 1)
                ]
                own_s[at[own]] = _union_s((bounds[0][own], bounds[1][own]), both)
    reported_s = {name: covered_s[name] - busy_s for name in REASONS}
    return IdleTime(length_s - busy_s, reported_s, length_s - covered_s[""])


def idle_share(case: Case) -> float:
    """Share of the GPU time in which nobody works and no row says why.

    That is of the steps that follow a recorded one, where there are any: what was before the first
    step of a window is not known.
    """
    follows = np.isfinite(gaps_s(case, first_start_s)) & follows_recorded(case)
    counted = follows if follows.any() else np.ones(follows.size, np.bool_)
    all_s = case.report.recorded_s + outside_s(case)
    return float(idle_time(case).unreported_s[counted].sum() / all_s[counted].sum())


def idle_in_steps_s(case: Case) -> Floats:
    """[steps], the part of each step in which nobody works and no row says why."""
    return np.maximum(0.0, idle_time(case).unreported_s - outside_s(case))


# Begins and ends [intervals, steps], in each step's own times.
Intervals = Sequence[Floats]


def _bounds_s(case: Case) -> tuple[Floats, Floats]:
    """[steps], from when on and until when nobody may have begun to compute, in own times."""
    until_s = case.joined(_first_computation_s)
    since_s = case.joined(lambda group: first_start_s(group.replayer.grid))
    gap_s = gaps_s(case, first_start_s)
    follows = np.isfinite(gap_s) & follows_recorded(case)
    return np.where(follows, since_s - gap_s, since_s), until_s


def _first_computation_s(group: Features) -> Floats:
    """[steps], the first start of a computation on any rank."""
    template, grid = group.replayer.template, group.replayer.grid
    is_compute = template.op_types.flags(lambda spec: spec.stream == COMPUTE_STREAM)
    rows = np.flatnonzero(is_compute[template.optype])
    if not rows.size:
        return first_start_s(grid)
    return np.asarray(grid.start_s[rows].reshape(-1, grid.num_steps).min(axis=0))


def _before_first(group: Features) -> Intervals:
    """What runs before the first computations: no receive, which waits."""
    template, grid = group.replayer.template, group.replayer.grid
    rows = np.concatenate(first_rows(group))
    rows = rows[~template.op_types.is_receive[template.optype[rows]]]
    begins_s = grid.start_s[rows].reshape(-1, grid.num_steps)
    return begins_s, begins_s + grid.duration_s[rows].reshape(-1, grid.num_steps)


def _noted(case: Case, group: Features, name: str) -> dict[int, Intervals]:
    """By position in the group, annotations of one type; begins and ends are [annotations, 1]."""
    notes = annotations(case, name)
    if notes is None:
        return {}
    notes, lane, begins_s = in_lanes(group, notes)
    position, ends_s = lane % len(group.steps), begins_s + notes.duration_s
    return {
        own: (begins_s[position == own, None], ends_s[position == own, None])
        for own in np.unique(position).tolist()
    }


def _union_s(bounds: tuple[Floats, Floats], intervals: Intervals) -> Floats:
    """[steps], seconds within the bounds that lie in any of the intervals."""
    since_s, until_s = bounds[0], np.maximum(*bounds)
    begins_s, ends_s = (np.clip(side_s, since_s, until_s) for side_s in intervals)
    order = np.argsort(begins_s, axis=0)
    begins_s = np.take_along_axis(begins_s, order, axis=0)
    ends_s = np.maximum.accumulate(np.take_along_axis(ends_s, order, axis=0), axis=0)
    covered_s = np.concatenate([since_s[None], ends_s])[:-1]
    return np.asarray(np.maximum(0.0, ends_s - np.maximum(begins_s, covered_s)).sum(axis=0))
