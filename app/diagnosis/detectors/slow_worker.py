"""slow-worker: forward and backward both slow, on all micro-batches and steps, against peers.

A failing or throttled GPU, a busy host, or GPUs of an older generation (then there are many).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis import few_steps, signals
from app.diagnosis.case import Case
from app.diagnosis.detector import Costed, Detector, Suspicion
from app.diagnosis.device import device_figures
from app.diagnosis.finding import MIN_SCORE, Culprit, RuledOut
from app.diagnosis.grouping import Worker
from app.diagnosis.late_workers import LateWorker, arrivals_evidence, gpu, late_workers
from app.diagnosis.noted import noted_s
from app.diagnosis.own_history import against_itself
from app.diagnosis.peers import ratios
from app.diagnosis.scores import confidence, scores
from app.diagnosis.shortened import Shortened, whole_stretch
from app.diagnosis.slowness import MIN_DEVIATIONS, NO_COMPUTATIONS, Slowness
from app.diagnosis.wording import sentence, times, who
from app.trace.window import Floats

# A worker so much slower than its peers leaves no doubt.
_CERTAIN = 1.25
_MOST_LISTED = 64
# Workers that differ by less are said to be equally slow.
_ALIKE = 1.05
# Of what the worst worker lost.
_NEGLIGIBLE = 0.1
# The score of what may be chance.
_UNLIKELY = 0.49
# Of the time that a worker computes longer: garbage collection that explains it.
_MOST_OF_EXCESS = 0.5


class SlowWorker(Detector):
    """Against the same stage's other dp ranks; where there are none, against its own past."""

    cause = "slow-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = case.slowness
        if found is None:
            return self._cannot_tell(NO_COMPUTATIONS)
        of_workers = np.where(_is_paused(case, found), 0.0, _scores(found))
        if not of_workers.max() >= MIN_SCORE:
            return self._alone() if found.by_itself else self._none(found, of_workers)
        borne_out = _borne_out(case, found)
        is_clear = found.stretches.mean >= few_steps.LEAST_RATIO
        likely = np.where(is_clear | borne_out, of_workers, np.minimum(of_workers, _UNLIKELY))
        if likely.max() < MIN_SCORE:
            return self._too_few(found, of_workers)
        return self._suspicion(case, found, likely, borne_out)

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
            f"no worker is slower than its peers in forward and backward alike: dp {dp_rank}, "
            f"stage {stage} comes nearest and takes {_both(found, dp_rank, stage)}",
            score=float(of_workers.max()),
            figures={"slowdown_against_peers": ratio, "needed": found.needed},
        )

    def _too_few(self, found: Slowness, of_workers: Floats) -> RuledOut:
        at = int(np.argmax(of_workers * found.stretches.mean))
        dp_rank, stage = divmod(at, found.ratio.shape[2])
        ratio = float(found.stretches.mean[at])
        why = few_steps.reason(found.usual.size, f"dp {dp_rank}, stage {stage}", times(ratio))
        figures = {"slowdown_against_peers": ratio, "needed": few_steps.LEAST_RATIO}
        return RuledOut(self.cause, why, insufficient=True, score=_UNLIKELY, figures=figures)

    def _suspicion(
        self, case: Case, found: Slowness, of_workers: Floats, borne_out: NDArray[np.bool_]
    ) -> Suspicion:
        order = np.argsort(-of_workers * found.stretches.mean, kind="stable")
        hit = _worth_naming(found, [int(at) for at in order if of_workers[at] >= MIN_SCORE])
        sure = confidence(float(found.stretches.deviations[hit[0]]), MIN_DEVIATIONS)
        workers = [divmod(at, case.parallelism.pp_size) for at in hit]
        late = case.ask(late_workers)
        blamed = tuple(_with_gpu(each, late) for each in case.culprits(workers))
        is_, its = ("is", "its") if len(blamed) == 1 else ("are", "their")
        than = "before" if found.by_itself else f"{its} peers"
        fact = (
            f"{who(blamed)} {is_} {_range(found, hit)} slower than {than} in forward and backward"
        )

        def wording(costed: Costed) -> str:
            return sentence(fact, costed)

        return Suspicion(
            self.cause,
            float(of_workers.max()),
            sure if borne_out[hit[0]] else min(sure, few_steps.MOST_CONFIDENCE),
            blamed,
            wording,
            repair=_repair(case, found, hit),
            course=_course(case, found, workers),
            evidence={**_evidence(case, found, hit, workers), **_arrivals(case, workers)},
        )


def _is_paused(case: Case, found: Slowness) -> NDArray[np.bool_]:
    """[workers], whose computations are longer by what their clients say of garbage collection."""
    pauses_s = noted_s(case, "gc-pause")
    if not pauses_s.any() or found.by_itself:
        return np.zeros(found.stretches.mean.size, np.bool_)
    work_s = case.joined(signals.work_s)
    pauses_s, work_s = (
        (each - np.median(each, axis=1, keepdims=True)).mean(axis=0).ravel()
        for each in (pauses_s, work_s)
    )
    return np.asarray((pauses_s > _MOST_OF_EXCESS * work_s) & (work_s > 0))


def _with_gpu(culprit: Culprit, late: list[LateWorker]) -> Culprit:
    """The culprit with the rank inside it that its own group waits for, if there is one."""
    if culprit.dp_rank is None or culprit.stage is None:
        return culprit
    worker = (culprit.dp_rank, culprit.stage)
    for each in late:
        if each.is_inside and each.worker == worker:
            return gpu(each)
    return culprit


def _arrivals(case: Case, workers: list[Worker]) -> dict[str, Any]:
    """What arrivals say of the first of these workers that the others wait for."""
    step_s = float(case.report.recorded_s.mean())
    for each in case.ask(late_workers):
        if each.worker in workers:
            return arrivals_evidence(each, each.late.waited_for_s / step_s)
    return {}


def _both(found: Slowness, dp_rank: int, stage: int) -> str:
    """What its forward and its backward take, where they are not alike."""
    forward, backward = (
        float(side[found.usual, dp_rank, stage].mean()) for side in (found.forward, found.backward)
    )
    ratio = float(found.ratio[found.usual, dp_rank, stage].mean())
    if not max(forward, backward) > _ALIKE * min(forward, backward):
        return f"{times(ratio)} as long"
    return f"{times(forward)} as long in the forward and {times(backward)} in the backward"


def _scores(found: Slowness) -> Floats:
    """[workers], 0..1; 0.5 and more where all that is needed is shown."""
    certain = max(_CERTAIN, 1.1 * found.needed)
    by_ratio = scores(found.stretches.mean, found.needed, certain)
    return np.where(found.shown >= 1, by_ratio, np.minimum(by_ratio, _UNLIKELY * found.shown))


def _borne_out(case: Case, found: Slowness) -> NDArray[np.bool_]:
    """[workers], whether there are steps enough, in the window and before, to tell."""
    if found.by_itself or found.usual.size >= few_steps.ENOUGH:
        # The change of one that is held against itself has been seen in steps enough.
        return np.ones(found.stretches.mean.size, np.bool_)
    return few_steps.is_borne_out(found.usual.size, _earlier(case, found), found.needed).ravel()


def _worth_naming(found: Slowness, hit: list[int]) -> list[int]:
    """Without those whose few slow steps are next to nothing beside what the worst one lost.

    A handful of long operations in a row, of a healthy worker.
    """
    size = (found.stretches.end - found.stretches.first)[hit]
    excess = (found.stretches.mean[hit] - 1) * size
    is_brief = (excess < _NEGLIGIBLE * excess.max()) & (2 * size < found.usual.size)
    return [at for at, brief in zip(hit, is_brief, strict=True) if not brief]


def _range(found: Slowness, hit: list[int]) -> str:
    """How slow they are, from the least slow one to the slowest where these differ."""
    mean = found.stretches.mean[hit]
    least, most = float(mean.min()), float(mean.max())
    ends = times(least), times(most)
    if most <= _ALIKE * least or ends[0] == ends[1]:
        return times(float(mean[0]))
    return " to ".join(ends)


def _course(case: Case, found: Slowness, workers: list[Worker]) -> Floats:
    """[steps of the course], how slow the slowest of them was."""
    dp_ranks, stages = zip(*workers, strict=True)
    ratio = np.concatenate([_earlier(case, found), found.ratio])[:, dp_ranks, stages]
    return np.asarray(ratio.max(axis=1))


def _earlier(case: Case, found: Slowness) -> Floats:
    """[earlier steps, dp, pp], the same of the steps before the window; NaN where not known."""
    course = case.course
    if found.by_itself:
        return against_itself(course)[: course.num_before]
    before_s = course.signals["compute_s"][: course.num_before]
    is_known = np.isfinite(before_s).all(axis=(1, 2))
    earlier = np.full(before_s.shape, np.nan)
    earlier[is_known] = ratios(before_s[is_known], found.measure)
    return earlier


def _evidence(case: Case, found: Slowness, hit: list[int], workers: list[Worker]) -> dict[str, Any]:
    first = int(found.usual[found.stretches.first[hit[0]]])
    last = int(found.usual[found.stretches.end[hit[0]] - 1])
    dp_rank, stage = workers[0]
    stretch = slice(first, last + 1)
    against = "itself" if found.by_itself else "peers"
    return {
        "workers": [list(worker) for worker in workers[:_MOST_LISTED]],
        "num_workers": len(workers),
        "stages": sorted({stage for _, stage in workers}),
        "hosts": sorted({host for worker in workers if (host := case.host(*worker)) is not None}),
        "optypes": ["forward-compute", "backward-compute"],
        "steps": case.steps[stretch].tolist(),
        f"slowdown_against_{against}": float(found.stretches.mean[hit[0]]),
        f"slowdowns_against_{against}": found.stretches.mean[hit[:_MOST_LISTED]].tolist(),
        "forward_slowdown": float(found.forward[stretch, dp_rank, stage].mean()),
        "backward_slowdown": float(found.backward[stretch, dp_rank, stage].mean()),
        "standard_errors": float(found.stretches.deviations[hit[0]]),
        "m_w": case.report.m_w,
        **device_figures(case, workers[0], case.steps[stretch]),
    }


def _repair(case: Case, found: Slowness, hit: list[int]) -> Shortened:
    """Their computations as their peers' are."""
    shape = found.ratio.shape
    factors = np.ones(shape), np.ones(shape)
    for at in hit:
        dp_rank, stage = divmod(at, shape[2])
        first, end = int(found.stretches.first[at]), int(found.stretches.end[at])
        stretch = whole_stretch(found.usual, first, end, shape[0])
        for side, factor in zip((found.forward, found.backward), factors, strict=True):
            own, usual = side[stretch, dp_rank, stage], found.usual[first:end]
            factor[stretch, dp_rank, stage] = (
                np.maximum(own, 1.0) if found.varies[at] else side[usual, dp_rank, stage].mean()
            )
    return Shortened(case, *factors)
