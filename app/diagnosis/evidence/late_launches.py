"""Hosts that launch each computation later than the other hosts do.

Batches that come late, pauses and stops delay some launches; processes on the wrong CPUs, or a
slow interpreter, delay all. `late_launchers` are the workers whose every launch is late,
`steady_delay_s` says by how much, and `late_launches` has what it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.data_waits import data_waits
from app.diagnosis.evidence.interruptions import (
    InterruptionKind,
    Interruptions,
    interruptions_of,
    is_one_of,
    joined,
    no_rows,
    rows_of_group,
    workers_where,
)
from app.diagnosis.evidence.outliers import launch_delays, launch_delays_s
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.finding import MIN_SHARE_OF_HOST, Worker
from app.engine.medians import medians_of_known
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """When workers are said to launch each computation late. All were chosen."""

    # Times the delay that others typically have, and any of them has.
    min_times_usual: float = 2.0
    # The same of workers that compute as fast as their peers: nothing else speaks against them.
    min_times_usual_alone: float = 5.0
    # Their share of the steps: fewer have stops, and no lasting reason.
    min_share_of_steps: float = 0.25
    # What they add up to, as a share of the step: less is no part of a cost.
    min_share: float = 0.01


LIMITS = LaunchLimits()
# In the evidence of a suspicion: seconds that each launch is late, where all are.
LAUNCHED_LATER_S = "launched_later_s"


def steady_delay_s(case: Case, workers: Sequence[Worker], steps: Sequence[int]) -> float | None:
    """Seconds that each launch of some workers is later than the others'; None where it is not.

    `steps` are those in which the workers are slow.
    """
    positions = np.flatnonzero(np.isin(case.steps, list(steps)))
    is_own = is_one_of(case, workers)
    if not positions.size or is_own.all():
        return None
    usual_s, num_launches = _usual_delays_s(case)
    usual_s = usual_s[positions].mean(axis=0)
    others_s = np.where(is_own, np.nan, usual_s)
    typical_s = float(np.nanmedian(others_s))
    own_s = usual_s[is_own]
    # One of the others may launch late as well.
    least_s = LIMITS.min_times_usual * typical_s, float(np.nanquantile(others_s, MIN_SHARE_OF_HOST))
    is_late = own_s >= max(least_s)
    later_s = float(np.median(own_s)) - typical_s
    step_s = float(case.report.recorded_s[positions].mean())
    takes_s = later_s * float(num_launches[is_own].mean())
    is_steady = is_late.mean() >= MIN_SHARE_OF_HOST and takes_s >= LIMITS.min_share * step_s
    return later_s if is_steady else None


@dataclass(frozen=True, slots=True)
class LateLaunchers:
    """At most half of the workers, which launch every computation late in some steps.

    `steps` are their numbers, `later_s` seconds a computation.
    """

    workers: list[Worker]
    steps: list[int]
    later_s: float


@evidence
def late_launchers(case: Case) -> LateLaunchers | None:
    """Workers that launch late by a multiple of what is usual, wherever they compute no longer."""
    delays_s, num_launches = _usual_delays_s(case)
    middle = (num_launches.size - 1) // 2
    typical_s = np.partition(delays_s.reshape(len(delays_s), -1), middle, axis=1)[:, middle]
    least_s = LIMITS.min_share * case.report.recorded_s
    is_late = delays_s > LIMITS.min_times_usual_alone * typical_s[:, None, None]
    is_late &= delays_s * num_launches >= least_s[:, None, None]
    share = is_late[usual_steps(case)].mean(axis=0)
    workers = workers_where(share >= LIMITS.min_share_of_steps)
    if not workers or 2 * len(workers) > num_launches.size:
        return None
    of_workers = is_late[:, *np.transpose(workers)].mean(axis=1)
    steps = case.steps[of_workers >= MIN_SHARE_OF_HOST].tolist()
    later_s = steady_delay_s(case, workers, steps)
    return None if later_s is None else LateLaunchers(workers, steps, later_s)


@evidence
def _usual_delays_s(case: Case) -> tuple[Floats, Ints]:
    """[steps, dp, pp], median launch delay of a worker, the lesser of both directions; [dp, pp].

    What delays one direction alone, as the loss before a backward, is no steady lateness. First
    forwards of a step are left out. Also launches a step.
    """
    sizes = case.parallelism
    usual_s = np.zeros((case.steps.size, sizes.dp_size, sizes.pp_size))
    num_launches = np.zeros((sizes.dp_size, sizes.pp_size), np.int64)
    for group, late in zip(case.groups, launch_delays(case), strict=True):
        for stage in range(sizes.pp_size):
            own = (late.stage == stage) & ~late.is_first
            num_launches[:, stage] = max(int(own.sum()), int(num_launches[0, stage]))
            medians = [
                medians_of_known(late.delay_s[rows].T)
                for rows in (own & late.is_backward, own & ~late.is_backward)
                if rows.any()
            ]
            if medians:
                of_lanes = np.min(medians, axis=0).reshape(sizes.dp_size, -1)
                usual_s[group.positions, :, stage] = of_lanes.T
    return usual_s, num_launches


def late_launches(case: Case, workers: Sequence[Worker]) -> Interruptions:
    """Launch delays of their computations above the others' median, without known pauses.

    Others are the stage's other workers; where there are none, the launches of other stages. First
    forwards whose waits for data are recorded are data-loading's.
    """
    parts, paused = [no_rows(case)], interruptions_of(case, InterruptionKind.LATE_BY_GC)
    is_peer, loading = ~is_one_of(case, workers), data_waits(case)
    elsewhere_s = np.where(is_peer, _usual_delays_s(case)[0], np.nan)
    for number, group in enumerate(case.groups):
        num_steps, computes = len(group.steps), group.compute_rows
        late_s = launch_delays_s(group.replayer, computes)
        here = paused.where(paused.group == number)
        late_s[np.searchsorted(computes, here.row), here.lane] -= here.excess_s
        late_s = late_s.reshape(computes.size, -1, num_steps)
        first = _first_rows(case, number)
        of_others_s = np.nan_to_num(np.nanmedian(elsewhere_s[group.positions], axis=(1, 2)))
        for dp_rank, stage in workers:
            at = np.flatnonzero(group.replayer.template.stage[computes] == stage)
            if loading.is_annotated and loading.waits[dp_rank, stage]:
                at = at[computes[at] != first[stage]]
            peers = is_peer[:, stage]
            usual_s = np.median(late_s[at][:, peers], axis=1) if peers.any() else of_others_s
            own_s = np.maximum(0.0, late_s[at, dp_rank] - usual_s).ravel()
            lane = np.tile(dp_rank * num_steps + np.arange(num_steps), at.size)
            of_ops = (np.repeat(computes[at], num_steps), lane, own_s, 0.0)
            parts.append(rows_of_group(case, number, InterruptionKind.LATE, *of_ops))
    return joined(parts)


def _first_rows(case: Case, number: int) -> Ints:
    """[pp], the row of each stage's first forward, -1 where it has none."""
    late, first = launch_delays(case)[number], np.full(case.parallelism.pp_size, -1)
    first[late.stage[late.is_first]] = late.rows[late.is_first]
    return first
