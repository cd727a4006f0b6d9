"""All figures of one window (what-if model, section 5)."""

from dataclasses import dataclass

import numpy as np

from app.engine import metrics
from app.engine.grid import Grid, lay_out
from app.engine.launch import LaunchDelay, launch_delay
from app.engine.what_if import Replayer, replayer
from app.errors import InvalidTrace
from app.trace.ops import OP_NAMES, OP_SPECS, Kind
from app.trace.window import Floats, Window


@dataclass(frozen=True, slots=True)
class Report:
    """What a window's steps lost, and to whom; ratios are plain numbers, times seconds.

    T is the mean simulated step time, T_ideal the one with every operation idealised. Shapes:
    `recorded_s`, `simulated_s`, `step_slowdown` [steps]; `optype_step_s` {type: [steps]};
    `dp_rank_step_s` [dp, steps], `stage_step_s` [pp, steps], `worker_step_s` [dp, pp, steps]:
    step times with only that type, rank, stage or worker at its recorded durations.
    """

    window: Window
    recorded_s: Floats
    simulated_s: Floats
    ideal_s: float
    optype_step_s: dict[str, Floats]
    dp_rank_step_s: Floats
    stage_step_s: Floats
    worker_step_s: Floats
    stage_share: list[float | None]
    m_w: float | None
    m_w_exact: float | None
    launch_delay: LaunchDelay

    @property
    def slowdown(self) -> float:
        """S = T / T_ideal."""
        return metrics.slowdown(self.simulated_s, self.ideal_s)

    @property
    def worker_slowdown(self) -> Floats:
        """[dp, pp], exact S_w of every worker."""
        return np.asarray(self.worker_step_s.mean(axis=2) / self.ideal_s)

    @property
    def worker_slowdown_estimate(self) -> Floats:
        """[dp, pp], min(dp-rank slowdown, stage slowdown), as published."""
        return _estimate(self.dp_rank_step_s, self.stage_step_s, self.ideal_s)

    @property
    def discrepancy(self) -> float:
        """How far the simulated mean step time is from the recorded one, as a share of it."""
        return metrics.discrepancy(self.simulated_s, self.recorded_s)

    @property
    def is_low_fidelity(self) -> bool:
        """Whether the simulation is too far from the record to blame anybody by it."""
        return self.discrepancy > metrics.MAX_DISCREPANCY

    @property
    def gpu_hours_lost(self) -> float:
        """GPU-hours lost to stragglers in the window's recorded time."""
        gpu_s = self.recorded_s.sum() * self.window.job.num_gpus
        return float(gpu_s * metrics.gpu_time_wasted(self.slowdown) / 3600)


def analyse(window: Window) -> Report:
    """Every figure of a window with at least one complete step.

    Raises:
        InvalidTrace: the steps cannot be replayed; the message names the operations.
    """
    grid = lay_out(window)
    replay = replayer(grid)
    simulated_s, ideal_s = replay.step_times(replay.keep()), replay.ideal_step_time()
    if min(simulated_s.mean(), ideal_s) <= 0:
        raise InvalidTrace(f"window {window.id}: a step that takes no time has no slowdown")
    dp_rank_s, stage_s, worker_s = _who(replay)
    estimate = _estimate(dp_rank_s, stage_s, ideal_s)
    return Report(
        window=window,
        recorded_s=_recorded_step_times(grid),
        simulated_s=simulated_s,
        ideal_s=ideal_s,
        optype_step_s=_by_optype(replay),
        dp_rank_step_s=dp_rank_s,
        stage_step_s=stage_s,
        worker_step_s=worker_s,
        stage_share=[
            metrics.recovered_share(
                simulated_s, replay.step_times(~replay.keep(stages=stage)), ideal_s
            )
            for stage in np.eye(replay.pp_size, dtype=np.bool_)
        ],
        m_w=_worker_share(replay, simulated_s, ideal_s, estimate),
        m_w_exact=_worker_share(replay, simulated_s, ideal_s, worker_s.mean(axis=2) / ideal_s),
        launch_delay=launch_delay(grid, replay.graph),
    )


def _who(replay: Replayer) -> tuple[Floats, Floats, Floats]:
    """Step times with one dp rank, one stage, or one worker recorded."""
    each_stage = np.eye(replay.pp_size, dtype=np.bool_)
    stage_s = [replay.step_times(replay.keep(stages=stage)) for stage in each_stage]
    worker_s = [replay.one_replica_kept(stage) for stage in each_stage]
    return replay.one_replica_kept(), np.array(stage_s), np.stack(worker_s, axis=1)


def _by_optype(replay: Replayer) -> dict[str, Floats]:
    """Step times with one op type recorded; a direction's sends and recvs are one type."""
    present = set(replay.grid.template.optype.tolist())
    groups: dict[str, list[int]] = {}
    for code in sorted(present):
        spec = OP_SPECS[code]
        p2p = spec.kind is Kind.P2P
        groups.setdefault(f"{spec.direction.value}-pp-comm" if p2p else spec.name, []).append(code)
    masks = {name: np.isin(np.arange(len(OP_NAMES)), codes) for name, codes in groups.items()}
    return {name: replay.step_times(replay.keep(optypes=mask)) for name, mask in masks.items()}


def _estimate(dp_rank_s: Floats, stage_s: Floats, ideal_s: float) -> Floats:
    step_s = np.minimum(dp_rank_s.mean(axis=1)[:, None], stage_s.mean(axis=1)[None, :])
    return np.asarray(step_s / ideal_s)


def _worker_share(
    replay: Replayer, simulated_s: Floats, ideal_s: float, ranking: Floats
) -> float | None:
    """M_W: share won back by fixing the slowest 3 % of workers by some ranking."""
    slowest = metrics.slowest_workers(ranking, replay.grid.rank)
    repaired_s = replay.step_times(~replay.keep_workers(slowest))
    return metrics.recovered_share(simulated_s, repaired_s, ideal_s)


def _recorded_step_times(grid: Grid) -> Floats:
    """[steps], latest end - earliest start over all operations on all workers."""
    by_step = (-1, grid.num_steps)
    end_s = (grid.start_s + grid.duration_s).max(axis=0).reshape(by_step).max(axis=0)
    return np.asarray(end_s - grid.start_s.min(axis=0).reshape(by_step).min(axis=0))
