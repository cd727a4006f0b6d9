"""All figures of one window, and the result with them (docs/glossary.md)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from app.engine import metrics
from app.engine.clocks.measure import Clocks
from app.engine.metrics import slowdown
from app.engine.op_times import LaunchDelay, OpTimes, launch_delay, op_times
from app.engine.replays import WindowReplay, prepare
from app.engine.what_if import Mask, Replayer, StepTimeQuestion
from app.result.figures import MAX_DISCREPANCY, as_tuples, gpu_time_wasted
from app.result.window_result import (
    MAX_CLOCKS,
    AbsentWorker,
    ClocksRecord,
    CompletedStep,
    FidelityRecord,
    FiguresByStep,
    HostClockRecord,
    ImputedRecord,
    JobSizes,
    LaunchDelayRecord,
    SkippedStepRecord,
    StepTimes,
    WindowHeader,
    WindowResult,
)
from app.trace.ops import NUM_CODES
from app.trace.window import Floats, Window


@dataclass(frozen=True)
class Report:
    """Losses of a window's steps by type, rank, stage and worker; ratios are plain, times seconds.

    T is the mean simulated step time, T_ideal the mean of those with every operation idealised.
    `window` has only the steps that were replayed. Shapes: `recorded_s`, `simulated_s`, `ideal_s`
    [steps], and `between_s`, the part of `recorded_s` between steps, which no replay has;
    `optype_step_s` {type: [steps]}; `dp_rank_step_s` [dp, steps], `stage_step_s` [pp, steps],
    `worker_step_s` [dp, pp, steps]: step times with only that type, rank, stage or worker at its
    recorded durations. `structures` are the steps of each structure; `lacks_waits` as
    `WindowReplay` has it.
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
    lacks_waits: bool = False

    @cached_property
    def slowdown(self) -> float:
        """S = T / T_ideal."""
        return float(metrics.slowdown(self.simulated_s, self.ideal_s))

    @cached_property
    def worker_slowdown(self) -> Floats:
        """[dp, pp], exact S_w of every worker; NaN for one that is absent from every step."""
        if not self.is_absent.any():
            return metrics.slowdown(self.worker_step_s, self.ideal_s)
        return metrics.known_slowdown(self.worker_step_s, self.ideal_s, ~self.is_absent)

    @cached_property
    def dp_rank_slowdown(self) -> Floats:
        """[dp], NaN for one of which every worker is absent from every step."""
        if not self.is_absent.any():
            return metrics.slowdown(self.dp_rank_step_s, self.ideal_s)
        known = np.asarray(~self.is_absent.all(axis=1))
        return metrics.known_slowdown(self.dp_rank_step_s, self.ideal_s, known)

    @cached_property
    def is_absent(self) -> NDArray[np.bool_]:
        """[dp, pp, steps], whether all operations of a worker are imputed."""
        imputed = self.window.imputed
        is_absent = np.zeros((*self.worker_step_s.shape[:2], len(self.window.steps)), np.bool_)
        for worker, steps in (imputed.absent if imputed else {}).items():
            is_absent[worker] = np.isin(self.window.steps, steps)
        return is_absent

    @property
    def worker_slowdown_estimate(self) -> Floats:
        """[dp, pp], min(dp-rank slowdown, stage slowdown), as published; NaN as above."""
        estimate = _estimate(self.dp_rank_step_s, self.stage_step_s, self.ideal_s)
        return np.where(self.is_absent.all(axis=2), np.nan, estimate)

    @cached_property
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
        """Whether the simulation is too far from the record to name culprits, or lacks all waits.

        Lost operations of present workers count as if their whole time were in doubt.
        """
        return self.lacks_waits or self.discrepancy + self.lone_share > MAX_DISCREPANCY

    @property
    def lone_share(self) -> float:
        """Lost operations of present workers, as a share of all operations."""
        imputed = self.window.imputed
        return 0.0 if imputed is None else len(imputed.lone) / self.window.trace.num_ops

    @property
    def gpu_hours_lost(self) -> float:
        """GPU-hours lost to stragglers in the window's recorded time."""
        gpu_s = self.recorded_s.sum() * self.window.job.num_gpus
        return float(gpu_s * gpu_time_wasted(self.slowdown) / 3600)


def analyse(window: Window) -> Report:
    """Every figure of a window; raises InvalidTrace, naming operations, if no step is replayed."""
    return analyse_replay(prepare(window))


def analyse_replay(replay: WindowReplay) -> Report:
    """Every figure of a window that is ready to be replayed."""
    simulated_s, ideal_s = replay.simulated_s, replay.ideal_s
    stages = list(np.eye(replay.window.job.parallelism.pp_size, dtype=np.bool_))
    types = _types(replay)
    questions: list[StepTimeQuestion] = [
        # Longest first, to keep all cores busy to the end.
        *[partial(Replayer.one_replica_kept, stages=stage) for stage in stages],
        Replayer.one_replica_kept,
        *[partial(Replayer.fixed_s, stages=stage) for stage in stages],
        *[partial(Replayer.kept_s, stages=stage) for stage in stages],
        *[partial(Replayer.kept_s, optypes=mask) for mask in types.values()],
    ]
    answers = iter(replay.answers(questions))
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
        stage_share=[metrics.recovered_share(simulated_s, step_s, ideal_s) for step_s in fixed_s],
        m_w=m_w,
        m_w_exact=m_w_exact,
        launch_delay=_launch_delay(replay),
        op_times=op_times(replay),
        clocks=replay.clocks,
        lacks_waits=replay.lacks_waits,
    )


def _types(replay: WindowReplay) -> dict[str, Mask]:
    """[codes] mask of each op type that occurs; a direction's sends and recvs are one type."""
    by_code = replay.window.job.op_types.by_code
    masks: dict[str, Mask] = {}
    for code in sorted({code for group in replay.groups for code in group.template.present}):
        masks.setdefault(by_code[code].group, np.zeros(NUM_CODES, np.bool_))[code] = True
    return masks


def _estimate(dp_rank_s: Floats, stage_s: Floats, ideal_s: Floats) -> Floats:
    step_s = np.minimum(dp_rank_s.mean(axis=1)[:, None], stage_s.mean(axis=1)[None, :])
    return np.asarray(step_s / ideal_s.mean())


def _worker_shares(replay: WindowReplay, rankings: list[Floats]) -> list[float | None]:
    """M_W by each ranking: share recovered by fixing the slowest 3 % of workers."""
    rank = replay.groups[0].grid.rank
    slowest = [metrics.slowest_workers(ranking, rank) for ranking in rankings]
    repaired_s = replay.answers([partial(Replayer.fixed_s, workers=workers) for workers in slowest])
    simulated_s, ideal_s = replay.simulated_s, replay.ideal_s
    return [metrics.recovered_share(simulated_s, step_s, ideal_s) for step_s in repaired_s]


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


RESULT_SCHEMA: Literal[1] = 1


def report_result(report: Report) -> WindowResult:
    """The whole result, with `per_step`; unknown is None, never 0 or NaN.

    Nothing has looked for causes, so an empty list would be a claim: findings are None.
    """
    ideal_s, gone = report.ideal_s, report.is_absent.all(axis=2)
    return structs.replace(
        result_without_figures(report.window),
        step_time_s=StepTimes(
            recorded=as_tuples(report.recorded_s),
            between=as_tuples(report.between_s),
            simulated=as_tuples(report.simulated_s),
            ideal=as_tuples(ideal_s),
        ),
        structures=report.structures,
        launch_slowdown=float(report.recorded_s.mean() / report.simulated_s.mean()),
        fidelity=FidelityRecord(
            discrepancy=report.discrepancy,
            verdict="low" if report.is_low_fidelity else "ok",
            step_discrepancy=as_tuples(report.step_discrepancy),
        ),
        clocks=_clocks(report.clocks),
        slowdown=report.slowdown,
        gpu_time_wasted=gpu_time_wasted(report.slowdown),
        gpu_hours_lost=report.gpu_hours_lost,
        launch_delay=LaunchDelayRecord(
            by_optype=report.launch_delay.by_optype,
            by_worker=as_tuples(np.where(gone, np.nan, report.launch_delay.by_worker)),
            others_waited=as_tuples(np.where(gone, np.nan, report.launch_delay.others_waited)),
        ),
        step_slowdown=as_tuples(report.simulated_s / ideal_s),
        optype_slowdown={
            name: float(slowdown(step_s, ideal_s)) for name, step_s in report.optype_step_s.items()
        },
        dp_rank_slowdown=as_tuples(report.dp_rank_slowdown),
        stage_slowdown=as_tuples(slowdown(report.stage_step_s, ideal_s)),
        worker_slowdown=as_tuples(report.worker_slowdown),
        worker_slowdown_estimate=as_tuples(report.worker_slowdown_estimate),
        m_w=report.m_w,
        m_w_exact=report.m_w_exact,
        m_s=report.stage_share[-1],
        stage_share=tuple(report.stage_share),
        stage_compute_s=report.op_times.stages,
        optype_time_s=report.op_times.by_type,
        wait_coverage=0.0 if report.lacks_waits else None,
        per_step=_per_step(report),
    )


def result_without_figures(window: Window) -> WindowResult:
    """The result of a window without one complete step: its header, and nothing measured."""
    sizes = window.job.parallelism
    result = unmeasured_result(
        WindowHeader(
            id=window.id,
            epoch=window.epoch,
            revision=window.revision,
            state=window.state,
            missing=tuple(window.missing),
        ),
        JobSizes(
            name=window.job.name,
            dp_size=sizes.dp_size,
            pp_size=sizes.pp_size,
            tp_size=sizes.tp_size,
            vpp_size=sizes.vpp_size,
            dsp_size=sizes.dsp_size,
            ep_size=sizes.ep_size,
            world_size=sizes.world_size,
        ),
        window.steps,
        ((skip.step, skip.reason) for skip in window.skipped),
        reason="no step can be replayed",
    )
    return structs.replace(result, imputed=imputed_record(window))


def unmeasured_result(
    window: WindowHeader,
    job: JobSizes,
    steps: Sequence[int],
    skipped: Iterable[tuple[int, str]],
    *,
    reason: str,
) -> WindowResult:
    """A result of which nothing was measured, replayed or diagnosed; `reason` is why not.

    `steps` are those with operations, `skipped` those left out, and why.
    """
    return WindowResult(
        schema=RESULT_SCHEMA,
        window=window,
        job=job,
        steps=tuple(steps),
        skipped_steps=tuple(SkippedStepRecord(step=step, reason=why) for step, why in skipped),
        imputed=None,
        step_time_s=StepTimes(recorded=(), between=(), simulated=(), ideal=()),
        structures=(),
        launch_slowdown=None,
        fidelity=FidelityRecord(discrepancy=None, verdict=None, step_discrepancy=()),
        clocks=ClocksRecord(residual_ms=None, hosts={}, reason=reason),
        slowdown=None,
        gpu_time_wasted=None,
        gpu_hours_lost=None,
        launch_delay=LaunchDelayRecord(by_optype={}, by_worker=None, others_waited=None),
        step_slowdown=(),
        optype_slowdown={},
        dp_rank_slowdown=None,
        stage_slowdown=None,
        worker_slowdown=None,
        worker_slowdown_estimate=None,
        m_w=None,
        m_w_exact=None,
        m_s=None,
        stage_share=None,
        stage_compute_s=None,
        optype_time_s={},
        findings=None,
        ruled_out=None,
        fingerprint=None,
        changes=None,
        arrivals=None,
        unexplained_share=None,
        unexplained=None,
        coverage=None,
        advice=None,
        step_started_s=(None,) * len(steps),
    )


def imputed_record(window: Window) -> ImputedRecord | None:
    """Operations of the window's steps that were not recorded; None where nothing is imputed.

    Workers are those absent from some step, by rank. `steps` are those completed, as they were.
    """
    imputed = window.imputed
    if imputed is None:
        return None
    workers = [
        AbsentWorker(
            rank=imputed.ranks[worker],
            dp_rank=worker[0],
            stage=worker[1],
            host=window.hosts.get(worker),
            first_step=steps[0],
            last_step=steps[-1],
            num_steps=len(steps),
        )
        for worker, steps in imputed.absent.items()
    ]
    return ImputedRecord(
        ops=imputed.num_ops,
        lone_ops=len(imputed.lone),
        share=imputed.num_ops / window.trace.num_ops,
        workers=tuple(sorted(workers, key=lambda worker: worker.rank)),
        steps=tuple(
            CompletedStep(step=step.step, reason=step.reason, missing=tuple(step.missing))
            for step in imputed.lacking
        ),
    )


def _clocks(clocks: Clocks) -> ClocksRecord:
    """Clocks of the hosts with the largest residuals, worst first."""
    by_residual = sorted(clocks.hosts.items(), key=lambda named: (-named[1].residual_s, named[0]))
    return ClocksRecord(
        residual_ms=None if clocks.residual_s is None else clocks.residual_s * 1e3,
        hosts={
            name: HostClockRecord(
                offset_ms=clock.offset_s * 1e3,
                drift_ppm=clock.drift_ppm,
                residual_ms=clock.residual_s * 1e3,
            )
            for name, clock in by_residual[:MAX_CLOCKS]
        },
        reason=clocks.reason,
    )


def _per_step(report: Report) -> FiguresByStep:
    ideal_s, gone = report.ideal_s, report.is_absent
    dp_rank = np.where(gone.all(axis=1), np.nan, report.dp_rank_step_s / ideal_s)
    worker = np.where(gone, np.nan, report.worker_step_s / ideal_s)
    return FiguresByStep(
        optype_slowdown={
            name: as_tuples(step_s / ideal_s) for name, step_s in report.optype_step_s.items()
        },
        dp_rank_slowdown=as_tuples(dp_rank.T),
        stage_slowdown=as_tuples((report.stage_step_s / ideal_s).T),
        worker_slowdown=as_tuples(worker.transpose(2, 0, 1)),
    )
