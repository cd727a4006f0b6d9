"""All figures of one window (what-if model, section 5)."""

from dataclasses import dataclass, replace

import numpy as np

from app.engine import metrics
from app.engine.clocks.measure import Clocks
from app.engine.op_times import LaunchDelay, OpTimes, launch_delay, op_times
from app.engine.replays import WindowReplay, prepare
from app.engine.what_if import Mask, StepTimeQuestion, fix, keep_one_replica, keep_only
from app.trace.ops import NUM_CODES
from app.trace.window import Floats, Ints, Window


@dataclass(frozen=True, slots=True)
class Report:
    """What a window's steps lost, by type, rank, stage and worker; ratios are plain, times seconds.

    T is the mean simulated step time, T_ideal the mean of those with every operation idealised.
    `window` has only the steps that were replayed. Shapes: `recorded_s`, `simulated_s`, `ideal_s`
    [steps], and `between_s`, the part of `recorded_s` between steps, which no replay has;
    `optype_step_s` {type: [steps]}; `dp_rank_step_s` [dp, steps], `stage_step_s` [pp, steps],
    `worker_step_s` [dp, pp, steps]: step times with only that type, rank, stage or worker at its
    recorded durations. `structures` are the steps of each structure.
    """

    window: Window
    structures: tuple[tuple[int, ...], ...]
    recorded_s: Floats
    between_s: Floats
    simulated_s: Floats
    ideal_s: Floats
    optype_step_s: dict[str, Floats]
    dp_rank_step_s: Floats
    stage_step_s: Floats
    worker_step_s: Floats
    stage_share: list[float | None]
    m_w: float | None
    m_w_exact: float | None
    launch_delay: LaunchDelay
    op_times: OpTimes
    clocks: Clocks

    @property
    def slowdown(self) -> float:
        """S = T / T_ideal."""
        return float(metrics.slowdown(self.simulated_s, self.ideal_s))

    @property
    def worker_slowdown(self) -> Floats:
        """[dp, pp], exact S_w of every worker."""
        return metrics.slowdown(self.worker_step_s, self.ideal_s)

    @property
    def worker_slowdown_estimate(self) -> Floats:
        """[dp, pp], min(dp-rank slowdown, stage slowdown), as published."""
        return _estimate(self.dp_rank_step_s, self.stage_step_s, self.ideal_s)

    @property
    def discrepancy(self) -> float:
        """|simulated - recorded| mean step time without idle time between steps, over recorded."""
        return metrics.discrepancy(self.simulated_s + self.between_s, self.recorded_s)

    @property
    def step_discrepancy(self) -> Floats:
        """[steps], discrepancy of each step."""
        replayed_s = self.simulated_s + self.between_s
        return np.abs(replayed_s - self.recorded_s) / self.recorded_s

    @property
    def is_low_fidelity(self) -> bool:
        """Whether the simulation is too far from the record to name culprits."""
        return self.discrepancy > metrics.MAX_DISCREPANCY

    @property
    def gpu_hours_lost(self) -> float:
        """GPU-hours lost to stragglers in the window's recorded time."""
        gpu_s = self.recorded_s.sum() * self.window.job.num_gpus
        return float(gpu_s * metrics.gpu_time_wasted(self.slowdown) / 3600)


def analyse(window: Window) -> Report:
    """Every figure of a window with at least one complete step.

    Raises:
        InvalidTrace: no step can be replayed; the message names the operations.
    """
    return analyse_replay(prepare(window))


def analyse_replay(replay: WindowReplay) -> Report:
    """Every figure of a window that is ready to be replayed."""
    simulated_s, ideal_s = replay.simulated_s, replay.ideal_s
    stages = list(np.eye(replay.window.job.parallelism.pp_size, dtype=np.bool_))
    types = _types(replay)
    questions: list[StepTimeQuestion] = [
        # Longest first, to keep all cores busy to the end.
        *[keep_one_replica(stage) for stage in stages],
        keep_one_replica(),
        *[fix(stages=stage) for stage in stages],
        *[keep_only(stages=stage) for stage in stages],
        *[keep_only(optypes=mask) for mask in types.values()],
    ]
    answers = iter(replay.each(questions))
    worker_s = np.stack([next(answers) for _ in stages], axis=1)
    dp_rank_s = next(answers)
    fixed_s = [next(answers) for _ in stages]
    stage_s = np.array([next(answers) for _ in stages])
    optype_s = {name: next(answers) for name in types}
    rankings = [_estimate(dp_rank_s, stage_s, ideal_s), metrics.slowdown(worker_s, ideal_s)]
    m_w, m_w_exact = _worker_shares(replay, rankings)
    return Report(
        window=replace(replay.window, steps=replay.steps, skipped=replay.skipped),
        structures=tuple(group.steps for group in replay.groups),
        recorded_s=replay.recorded_s,
        between_s=replay.between_s,
        simulated_s=simulated_s,
        ideal_s=ideal_s,
        optype_step_s=optype_s,
        dp_rank_step_s=dp_rank_s,
        stage_step_s=stage_s,
        worker_step_s=worker_s,
        stage_share=[metrics.recovered_share(simulated_s, each, ideal_s) for each in fixed_s],
        m_w=m_w,
        m_w_exact=m_w_exact,
        launch_delay=_launch_delay(replay),
        op_times=op_times(replay),
        clocks=replay.clocks,
    )


def _types(replay: WindowReplay) -> dict[str, Mask]:
    """[codes] mask of each op type that occurs; a direction's sends and recvs are one type."""
    by_code = replay.window.job.op_types.by_code
    found: dict[str, Mask] = {}
    for code in sorted({code for group in replay.groups for code in group.template.present}):
        found.setdefault(by_code[code].group, np.zeros(NUM_CODES, np.bool_))[code] = True
    return found


def _estimate(dp_rank_s: Floats, stage_s: Floats, ideal_s: Floats) -> Floats:
    step_s = np.minimum(dp_rank_s.mean(axis=1)[:, None], stage_s.mean(axis=1)[None, :])
    return np.asarray(step_s / ideal_s.mean())


def _worker_shares(replay: WindowReplay, rankings: list[Floats]) -> list[float | None]:
    """M_W by each ranking: share recovered by fixing the slowest 3 % of workers."""
    rank = _ranks(replay)
    slowest = [metrics.slowest_workers(ranking, rank) for ranking in rankings]
    repaired = replay.each([fix(workers=workers) for workers in slowest])
    return [metrics.recovered_share(replay.simulated_s, each, replay.ideal_s) for each in repaired]


def _ranks(replay: WindowReplay) -> Ints:
    return replay.groups[0].grid.rank


def _launch_delay(replay: WindowReplay) -> LaunchDelay:
    """Means over all steps of all groups."""
    total = len(replay.steps)
    parts = [(len(g.steps) / total, launch_delay(g.grid, g.graph)) for g in replay.groups]
    names = {name: None for _, part in parts for name in part.by_optype}
    return LaunchDelay(
        {name: sum(w * part.by_optype.get(name, 0.0) for w, part in parts) for name in names},
        np.sum([weight * part.by_worker for weight, part in parts], axis=0),
        np.sum([weight * part.others_waited for weight, part in parts], axis=0),
    )
