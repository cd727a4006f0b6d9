"""All figures of one window, and their JSON object (docs/glossary.md)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine import metrics
from app.engine.clocks.measure import Clocks
from app.engine.metrics import slowdown
from app.engine.op_times import LaunchDelay, OpTimes, launch_delay, op_times
from app.engine.replays import WindowReplay, prepare
from app.engine.what_if import Mask, StepTimeQuestion, fix, keep_one_replica, keep_only
from app.result.figures import MAX_DISCREPANCY, as_lists, gpu_time_wasted
from app.result.window_result import MAX_CLOCKS
from app.trace.ops import NUM_CODES
from app.trace.window import Floats, Window


@dataclass(frozen=True)
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
        return absent_workers(self.window)

    @property
    def worker_slowdown_estimate(self) -> Floats:
        """[dp, pp], min(dp-rank slowdown, stage slowdown), as published; NaN as above."""
        found = _estimate(self.dp_rank_step_s, self.stage_step_s, self.ideal_s)
        return np.where(self.is_absent.all(axis=2), np.nan, found)

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
        """Whether the simulation is too far from the record to name culprits.

        Lost operations of present workers count as if their whole time were in doubt.
        """
        return self.discrepancy + self.lone_share > MAX_DISCREPANCY

    @property
    def lone_share(self) -> float:
        """Lost operations of present workers, as a share of all operations."""
        found = self.window.imputed
        if found is None:
            return 0.0
        return len(found.lone) / self.window.trace.num_ops

    @property
    def gpu_hours_lost(self) -> float:
        """GPU-hours lost to stragglers in the window's recorded time."""
        gpu_s = self.recorded_s.sum() * self.window.job.num_gpus
        return float(gpu_s * gpu_time_wasted(self.slowdown) / 3600)


def absent_workers(window: Window) -> NDArray[np.bool_]:
    """[dp, pp, steps], whether a worker is absent from a step of the window."""
    sizes = window.job.parallelism
    found = np.zeros((sizes.dp_size, sizes.pp_size, len(window.steps)), np.bool_)
    for worker, steps in (window.imputed.absent if window.imputed else {}).items():
        found[worker] = np.isin(window.steps, steps)
    return found


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
    rank = replay.groups[0].grid.rank
    slowest = [metrics.slowest_workers(ranking, rank) for ranking in rankings]
    repaired = replay.each([fix(workers=workers) for workers in slowest])
    return [metrics.recovered_share(replay.simulated_s, each, replay.ideal_s) for each in repaired]


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


RESULT_SCHEMA = 1

# Blocks that only a diagnosis fills, or only a replay and a diagnosis; unknown is None.
_OF_DIAGNOSIS = (
    "findings",
    "ruled_out",
    "fingerprint",
    "changes",
    "arrivals",
    "unexplained_share",
    "unexplained",
    "coverage",
    "advice",
)
_NOT_MEASURED = (
    "launch_slowdown",
    "slowdown",
    "gpu_time_wasted",
    "gpu_hours_lost",
    "dp_rank_slowdown",
    "stage_slowdown",
    "worker_slowdown",
    "worker_slowdown_estimate",
    "m_w",
    "m_w_exact",
    "m_s",
    "stage_share",
    "stage_compute_s",
    *_OF_DIAGNOSIS,
    "per_step",
)


def report_as_json(report: Report) -> dict[str, Any]:
    """The whole result, with `per_step`; unknown is None, never 0 or NaN."""
    return {
        **_window_header(report.window),
        **_step_times(report),
        "clocks": _clocks(report.clocks),
        **_figures(report),
        "per_step": _per_step(report),
    }


def result_without_figures(window: Window) -> dict[str, Any]:
    """The result of a window without one complete step: its header, and nothing measured."""
    return {
        **_window_header(window),
        "step_time_s": {"recorded": [], "between": [], "simulated": [], "ideal": []},
        **without_replay("no step can be replayed"),
    }


def without_replay(reason: str) -> dict[str, Any]:
    """Every block that needs a replay or a diagnosis, empty; `reason` is that of the clocks."""
    return {
        "fidelity": {"discrepancy": None, "verdict": None, "step_discrepancy": []},
        "launch_delay": {"by_optype": {}, "by_worker": None, "others_waited": None},
        "structures": [],
        "clocks": {"residual_ms": None, "hosts": {}, "reason": reason},
        "step_slowdown": [],
        "optype_slowdown": {},
        "optype_time_s": {},
        **dict.fromkeys(_NOT_MEASURED),
    }


def header(
    window: Mapping[str, Any],
    job: Mapping[str, Any],
    steps: Sequence[int],
    skipped: Iterable[tuple[int, str]],
) -> dict[str, Any]:
    """The blocks that every result begins with; `skipped` has the steps left out and reasons."""
    return {
        "schema": RESULT_SCHEMA,
        "window": dict(window),
        "job": dict(job),
        "steps": list(steps),
        "skipped_steps": [{"step": step, "reason": reason} for step, reason in skipped],
    }


def _window_header(window: Window) -> dict[str, Any]:
    sizes = window.job.parallelism
    names = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size", "world_size")
    return header(
        {name: getattr(window, name) for name in ("id", "epoch", "revision", "state", "missing")},
        {"name": window.job.name} | {name: getattr(sizes, name) for name in names},
        window.steps,
        ((skip.step, skip.reason) for skip in window.skipped),
    ) | {"imputed": imputed_as_json(window)}


def imputed_as_json(window: Window) -> dict[str, Any] | None:
    """What was not recorded of the window's steps; None where nothing is imputed.

    Workers are those absent from some step, by rank. `steps` are those completed, as they were.
    """
    found = window.imputed
    if found is None:
        return None
    workers = [
        {
            "rank": found.ranks[worker],
            "dp_rank": worker[0],
            "stage": worker[1],
            "host": window.hosts.get(worker),
            "first_step": steps[0],
            "last_step": steps[-1],
            "num_steps": len(steps),
        }
        for worker, steps in found.absent.items()
    ]
    return {
        "ops": found.num_ops,
        "lone_ops": len(found.lone),
        "share": found.num_ops / window.trace.num_ops,
        "workers": sorted(workers, key=lambda each: each["rank"]),
        "steps": [
            {"step": each.step, "reason": each.reason, "missing": list(each.missing)}
            for each in found.lacking
        ],
    }


def _step_times(report: Report) -> dict[str, Any]:
    return {
        "step_time_s": {
            "recorded": report.recorded_s.tolist(),
            "between": report.between_s.tolist(),
            "simulated": report.simulated_s.tolist(),
            "ideal": report.ideal_s.tolist(),
        },
        "structures": [list(steps) for steps in report.structures],
        "launch_slowdown": float(report.recorded_s.mean() / report.simulated_s.mean()),
        "fidelity": {
            "discrepancy": report.discrepancy,
            "verdict": "low" if report.is_low_fidelity else "ok",
            "step_discrepancy": report.step_discrepancy.tolist(),
        },
    }


def _clocks(clocks: Clocks) -> dict[str, Any]:
    """Clocks of the hosts with the largest residuals, worst first."""
    by_residual = sorted(clocks.hosts.items(), key=lambda each: (-each[1].residual_s, each[0]))
    return {
        "residual_ms": None if clocks.residual_s is None else clocks.residual_s * 1e3,
        "hosts": {
            name: {
                "offset_ms": clock.offset_s * 1e3,
                "drift_ppm": clock.drift_ppm,
                "residual_ms": clock.residual_s * 1e3,
            }
            for name, clock in by_residual[:MAX_CLOCKS]
        },
        "reason": clocks.reason,
    }


def _figures(report: Report) -> dict[str, Any]:
    ideal_s, gone = report.ideal_s, report.is_absent.all(axis=2)
    return {
        "slowdown": report.slowdown,
        "gpu_time_wasted": gpu_time_wasted(report.slowdown),
        "gpu_hours_lost": report.gpu_hours_lost,
        "launch_delay": {
            "by_optype": report.launch_delay.by_optype,
            "by_worker": as_lists(np.where(gone, np.nan, report.launch_delay.by_worker)),
            "others_waited": as_lists(np.where(gone, np.nan, report.launch_delay.others_waited)),
        },
        "step_slowdown": (report.simulated_s / ideal_s).tolist(),
        "optype_slowdown": {
            name: float(slowdown(step_s, ideal_s)) for name, step_s in report.optype_step_s.items()
        },
        "dp_rank_slowdown": as_lists(report.dp_rank_slowdown),
        "stage_slowdown": slowdown(report.stage_step_s, ideal_s).tolist(),
        "worker_slowdown": as_lists(report.worker_slowdown),
        "worker_slowdown_estimate": as_lists(report.worker_slowdown_estimate),
        "m_w": report.m_w,
        "m_w_exact": report.m_w_exact,
        "m_s": report.stage_share[-1],
        "stage_share": report.stage_share,
        **_op_times(report.op_times),
        # Nothing has looked for causes, so "none found" ([]) would be a claim.
        **dict.fromkeys(_OF_DIAGNOSIS),
    }


def _op_times(times: OpTimes) -> dict[str, Any]:
    return {
        "stage_compute_s": {"forward": times.forward_s, "backward": times.backward_s},
        "optype_time_s": {
            name: {"recorded": each.recorded_s, "transfer": each.transfer_s, "wait": each.wait_s}
            for name, each in times.by_type.items()
        },
    }


def _per_step(report: Report) -> dict[str, Any]:
    ideal_s, gone = report.ideal_s, report.is_absent
    dp_rank = np.where(gone.all(axis=1), np.nan, report.dp_rank_step_s / ideal_s)
    worker = np.where(gone, np.nan, report.worker_step_s / ideal_s)
    return {
        "optype_slowdown": {
            name: (step_s / ideal_s).tolist() for name, step_s in report.optype_step_s.items()
        },
        "dp_rank_slowdown": as_lists(dp_rank.T),
        "stage_slowdown": (report.stage_step_s / ideal_s).T.tolist(),
        "worker_slowdown": as_lists(worker.transpose(2, 0, 1)),
    }
