"""slow-worker: forward and backward of a worker are slower than its peers' on all micro-batches.

A failing or throttled GPU, a busy host, or GPUs of an older generation. Where computations hide
waits, or inside a worker, only waiting for late ranks shows it (`SlowWorkerByArrivals`). The
evidence includes clock, temperature and power of the GPU and of its peers'.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    ENOUGH_STEPS,
    MAX_CONFIDENCE,
    MIN_CLEAR_RATIO,
    Detector,
    Suspicion,
    as_ratio,
    finding_sentence,
    is_supported,
    names_of,
    percent,
    too_few_steps_reason,
)
from app.diagnosis.detectors.rotating_workers import IN_TURN, rotating_suspicion
from app.diagnosis.evidence.features import work_s
from app.diagnosis.evidence.interruptions import annotated_s
from app.diagnosis.evidence.late_workers import (
    MIN_SHARE,
    LateWorker,
    arrivals_evidence,
    gpu_culprit,
    late_workers,
)
from app.diagnosis.evidence.slow_steps import slow_in_turn, slow_parts, workers_in_turn
from app.diagnosis.evidence.slowness import (
    MIN_DEVIATIONS,
    NO_COMPUTATIONS,
    Slowness,
    against_own_history,
    ratios_to_peers,
)
from app.diagnosis.finding import MIN_SCORE, Culprit, RuledOut, Worker, confidence, scores
from app.diagnosis.repair import ShortenedComputations, stretch_slice
from app.diagnosis.statistics.persistence import rotation
from app.trace.window import Floats, Ints, Trace

_DEVICE_FIGURES = ("sm_clock_mhz", "temperature_c", "power_w")


def device_figures(case: Case, worker: Worker, steps: Ints) -> dict[str, float]:
    """Median clock, temperature and power of the worker and of its peers, where these are sent.

    `xid` is the number of the last error that its driver logged.
    """
    trace, found = case.replay.window.trace, dict[str, float]()
    dp_rank, stage = worker
    columns = {name: getattr(trace, name) for name in _DEVICE_FIGURES}
    sent = {name: column for name, column in columns.items() if column is not None}
    if not sent and trace.xid is None:
        return found
    rows = np.flatnonzero((trace.stage == stage) & np.isin(trace.step, steps))
    is_mine = trace.dp_rank[rows] == dp_rank
    for name, column in sent.items():
        is_sent = column[rows] >= 0
        for suffix, chosen in (("", is_mine & is_sent), ("_of_peers", ~is_mine & is_sent)):
            if chosen.any():
                found[name + suffix] = float(np.median(column[rows][chosen]))
    return found | _last_error(trace, rows[is_mine])


def _last_error(trace: Trace, rows: Ints) -> dict[str, float]:
    """The error of the latest step among the rows; empty where none was logged."""
    if trace.xid is None or not (rows := rows[trace.xid[rows] > 0]).size:
        return {}
    return {"xid": float(trace.xid[rows[trace.step[rows].argmax()]])}


# Score 1 from this ratio.
_CERTAIN_RATIO = 1.25
_MAX_LISTED = 64
# Ratios within this factor are given as one.
_MAX_ALIKE_RATIO = 1.05
# Workers that lost less than this share of the worst one's loss may be left out.
_MIN_SHARE_OF_WORST = 0.1
# The score of what may be chance.
_CHANCE_SCORE = 0.49
# Garbage collection explains a slow worker if it is this share of its excess.
_MIN_GC_OF_EXCESS = 0.5


class SlowWorker(Detector):
    """Compares a worker with its stage's other dp ranks; without any, with its own history."""

    cause = "slow-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = case.slowness
        if found is None:
            return self._cannot_tell(NO_COMPUTATIONS)
        of_workers = np.where(_is_paused(case, found), 0.0, _scores(found))
        turns = workers_in_turn(case, found)
        if turns is not None and len(turns.workers) > (of_workers >= MIN_SCORE).sum():
            badness = _badness(case, found, list(turns.workers))
            return rotating_suspicion(case, found, turns, badness)
        if not of_workers.max() >= MIN_SCORE:
            return self._alone() if found.has_no_peers else self._none(found, of_workers)
        has_support = _is_supported(case, found)
        is_clear = found.stretches.mean >= MIN_CLEAR_RATIO
        likely = np.where(is_clear | has_support, of_workers, np.minimum(of_workers, _CHANCE_SCORE))
        if likely.max() < MIN_SCORE:
            return self._too_few(found, of_workers)
        return self._suspicion(case, found, likely, has_support)

    def _cannot_tell(self, reason: str) -> RuledOut:
        return RuledOut(self.cause, reason, insufficient=True)

    def _alone(self) -> RuledOut:
        return self._cannot_tell(
            "with one dp rank a worker has no peers: one that is slow from the beginning looks "
            "like a stage with more work, and none has become slower than it was"
        )

    def _none(self, found: Slowness, of_workers: Floats) -> RuledOut:
        at = int(np.argmax(found.stretches.mean * (of_workers >= of_workers.max())))
        dp_rank, stage = divmod(at, found.ratio.shape[2])
        ratio = float(found.ratio[found.usual, dp_rank, stage].mean())
        return RuledOut(
            self.cause,
            f"no worker is slower than its peers in forward and backward alike: the slowest, "
            f"dp {dp_rank}, stage {stage}, takes {_direction_figures(found, dp_rank, stage)}",
            score=float(of_workers.max()),
            figures={"slowdown_against_peers": ratio, "needed": found.threshold},
        )

    def _too_few(self, found: Slowness, of_workers: Floats) -> RuledOut:
        at = int(np.argmax(of_workers * found.stretches.mean))
        dp_rank, stage = divmod(at, found.ratio.shape[2])
        ratio = float(found.stretches.mean[at])
        why = too_few_steps_reason(
            found.usual.size, f"dp {dp_rank}, stage {stage}", as_ratio(ratio)
        )
        figures = {"slowdown_against_peers": ratio, "needed": MIN_CLEAR_RATIO}
        return RuledOut(self.cause, why, insufficient=True, score=_CHANCE_SCORE, figures=figures)

    def _suspicion(
        self, case: Case, found: Slowness, of_workers: Floats, has_support: NDArray[np.bool_]
    ) -> Suspicion:
        order = np.argsort(-of_workers * found.stretches.mean, kind="stable")
        hit = _worth_naming(found, [int(at) for at in order if of_workers[at] >= MIN_SCORE])
        sure = confidence(float(found.stretches.standard_errors[hit[0]]), MIN_DEVIATIONS)
        workers = [divmod(at, case.parallelism.pp_size) for at in hit]
        late = case.cached(late_workers)
        culprits = tuple(_with_gpu(each, late) for each in case.culprits(workers))
        is_, its = ("is", "its") if len(culprits) == 1 else ("are", "their")
        than = "before" if found.has_no_peers else f"{its} peers"
        lasts = rotation(slow_in_turn(case, found, hit))
        fact = (
            f"{IN_TURN if lasts == 'rotating' else ''}{names_of(culprits)} {is_} "
            f"{_range(found, hit)} slower than {than} in forward and backward"
        )

        return Suspicion(
            self.cause,
            float(of_workers.max()),
            sure if has_support[hit[0]] else min(sure, MAX_CONFIDENCE),
            culprits,
            partial(finding_sentence, fact),
            repair=_repair(case, found, hit),
            badness=_badness(case, found, workers),
            persistence=lasts,
            evidence={**_evidence(case, found, hit, workers), **_arrivals(case, workers)},
        )


def _is_paused(case: Case, found: Slowness) -> NDArray[np.bool_]:
    """[workers], whether annotated garbage collection explains their excess."""
    pauses_s = annotated_s(case, "gc-pause")
    if not pauses_s.any() or found.has_no_peers:
        return np.zeros(found.stretches.mean.size, np.bool_)
    computed_s = case.joined(work_s)
    pauses_s, computed_s = (
        (each - np.median(each, axis=1, keepdims=True)).mean(axis=0).ravel()
        for each in (pauses_s, computed_s)
    )
    return np.asarray((pauses_s > _MIN_GC_OF_EXCESS * computed_s) & (computed_s > 0))


def _with_gpu(culprit: Culprit, late: list[LateWorker]) -> Culprit:
    """The culprit as the GPU that the worker's own ranks wait for, if there is one."""
    if culprit.dp_rank is None or culprit.stage is None:
        return culprit
    worker = (culprit.dp_rank, culprit.stage)
    for each in late:
        if each.is_inside and each.worker == worker:
            return gpu_culprit(each)
    return culprit


def _arrivals(case: Case, workers: list[Worker]) -> dict[str, Any]:
    """Arrivals' figures of the first of these workers that others wait for."""
    step_s = float(case.report.recorded_s.mean())
    for each in case.cached(late_workers):
        if each.worker in workers:
            return arrivals_evidence(each, each.late.waited_for_s / step_s)
    return {}


def _direction_figures(found: Slowness, dp_rank: int, stage: int) -> str:
    """The ratio of a worker in words, by direction where these differ."""
    forward, backward = (
        float(side[found.usual, dp_rank, stage].mean()) for side in (found.forward, found.backward)
    )
    ratio = float(found.ratio[found.usual, dp_rank, stage].mean())
    if not max(forward, backward) > _MAX_ALIKE_RATIO * min(forward, backward):
        return f"{as_ratio(ratio)} as long"
    return f"{as_ratio(forward)} as long in the forward and {as_ratio(backward)} in the backward"


def _scores(found: Slowness) -> Floats:
    """[workers], 0..1; below 0.5 where the evidence is not sufficient."""
    certain = max(_CERTAIN_RATIO, 1.1 * found.threshold)
    by_ratio = scores(found.stretches.mean, found.threshold, certain)
    return np.where(
        found.significance >= 1, by_ratio, np.minimum(by_ratio, _CHANCE_SCORE * found.significance)
    )


def _is_supported(case: Case, found: Slowness) -> NDArray[np.bool_]:
    """[workers], whether enough steps, in the window and before, support the slowdown."""
    if found.has_no_peers or found.usual.size >= ENOUGH_STEPS:
        # A change in the worker's own history has been seen in enough steps.
        return np.ones(found.stretches.mean.size, np.bool_)
    return is_supported(found.usual.size, _earlier(case, found), found.threshold).ravel()


def _worth_naming(found: Slowness, hit: list[int]) -> list[int]:
    """Leaves out workers with few slow steps and little loss: healthy ones with long operations."""
    size = (found.stretches.end - found.stretches.first)[hit]
    excess = (found.stretches.mean[hit] - 1) * size
    is_brief = (excess < _MIN_SHARE_OF_WORST * excess.max()) & (2 * size < found.usual.size)
    return [at for at, brief in zip(hit, is_brief, strict=True) if not brief]


def _range(found: Slowness, hit: list[int]) -> str:
    """Their ratio in words, a range where they differ."""
    mean = found.stretches.mean[hit]
    least, most = float(mean.min()), float(mean.max())
    ends = as_ratio(least), as_ratio(most)
    if most <= _MAX_ALIKE_RATIO * least or ends[0] == ends[1]:
        return as_ratio(float(mean[0]))
    return " to ".join(ends)


def _badness(case: Case, found: Slowness, workers: list[Worker]) -> Floats:
    """[steps of the extended history], the highest ratio of these workers."""
    dp_ranks, stages = zip(*workers, strict=True)
    ratio = np.concatenate([_earlier(case, found), found.ratio])[:, dp_ranks, stages]
    return np.asarray(ratio.max(axis=1))


def _earlier(case: Case, found: Slowness) -> Floats:
    """[earlier steps, dp, pp], ratios before the window; NaN where unknown."""
    history = case.extended_history
    if found.has_no_peers:
        return against_own_history(history)[: history.num_before]
    before_s = history.signals["compute_s"][: history.num_before]
    is_known = np.isfinite(before_s).all(axis=(1, 2))
    earlier = np.full(before_s.shape, np.nan)
    earlier[is_known] = ratios_to_peers(before_s[is_known], found.measure)
    return earlier


def _evidence(case: Case, found: Slowness, hit: list[int], workers: list[Worker]) -> dict[str, Any]:
    first = int(found.usual[found.stretches.first[hit[0]]])
    last = int(found.usual[found.stretches.end[hit[0]] - 1])
    dp_rank, stage = workers[0]
    stretch = slice(first, last + 1)
    hosts = case.replay.window.hosts
    against = "itself" if found.has_no_peers else "peers"
    return {
        "workers": [list(worker) for worker in workers[:_MAX_LISTED]],
        "num_workers": len(workers),
        "stages": sorted({stage for _, stage in workers}),
        "hosts": sorted({hosts[worker] for worker in workers if worker in hosts}),
        "optypes": ["forward-compute", "backward-compute"],
        "steps": case.steps[stretch].tolist(),
        f"slowdown_against_{against}": float(found.stretches.mean[hit[0]]),
        f"slowdowns_against_{against}": found.stretches.mean[hit[:_MAX_LISTED]].tolist(),
        "forward_slowdown": float(found.forward[stretch, dp_rank, stage].mean()),
        "backward_slowdown": float(found.backward[stretch, dp_rank, stage].mean()),
        "standard_errors": float(found.stretches.standard_errors[hit[0]]),
        "m_w": case.report.m_w,
        **device_figures(case, workers[0], case.steps[stretch]),
    }


def _repair(case: Case, found: Slowness, hit: list[int]) -> ShortenedComputations:
    """Their computations at their peers' speed."""
    shape = found.ratio.shape
    factors = np.ones(shape), np.ones(shape)
    for at in hit:
        dp_rank, stage = divmod(at, shape[2])
        first, end = int(found.stretches.first[at]), int(found.stretches.end[at])
        stretch = stretch_slice(found.usual, first, end, shape[0])
        parts = slow_parts(found, at)
        if parts is not None:
            # It comes and goes: each slow step by its own ratio, the others as they are.
            for side, factor in zip((found.forward, found.backward), factors, strict=True):
                factor[parts, dp_rank, stage] = np.maximum(side[parts, dp_rank, stage], 1.0)
            continue
        for side, factor in zip((found.forward, found.backward), factors, strict=True):
            own, usual = side[stretch, dp_rank, stage], found.usual[first:end]
            factor[stretch, dp_rank, stage] = (
                np.maximum(own, 1.0) if found.varies[at] else side[usual, dp_rank, stage].mean()
            )
    return ShortenedComputations(case, *factors)


# Lower than by durations.
_ARRIVALS_CONFIDENCE = 0.9


class SlowWorkerByArrivals(Detector):
    """Ranks that others wait for and that were not held up, with longer computations."""

    cause = "slow-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        step_s = float(case.report.recorded_s.mean())
        late = [
            each
            for each in case.cached(late_workers)
            if each.kind in ("compute", "unknown") and each.late.waited_for_s >= MIN_SHARE * step_s
        ]
        if not late:
            return RuledOut(self.cause, "the others wait for no rank that computes longer")
        return _suspicion_by_arrivals(case, late, step_s)


def _suspicion_by_arrivals(case: Case, late: list[LateWorker], step_s: float) -> Suspicion:
    worst = late[0]
    workers = list(dict.fromkeys(each.worker for each in late))
    named = [
        gpu_culprit(each) if each.is_inside else case.culprits([each.worker])[0] for each in late
    ]
    # GPUs of one worker are separate culprits.
    culprits = tuple({each.rank: each for each in named}.values())
    is_, its, them = ("is", "its", "it") if len(culprits) == 1 else ("are", "their", "them")
    fact = (
        f"{names_of(culprits)} {is_} late to {percent(worst.late.late_share)} of {its} collectives "
        f"by {its} own doing: the others wait {1e3 * worst.late.waited_for_s:.3g} ms for {them} in "
        "each step"
    )

    return Suspicion(
        SlowWorkerByArrivals.cause,
        _ARRIVALS_CONFIDENCE,
        _ARRIVALS_CONFIDENCE,
        culprits,
        partial(finding_sentence, fact),
        persistence="chronic",
        evidence={
            "workers": [list(worker) for worker in workers[:_MAX_LISTED]],
            "num_workers": len(workers),
            "optypes": [],
            "steps": case.steps.tolist(),
            **arrivals_evidence(worst, worst.late.waited_for_s / step_s),
        },
    )
