"""stage-imbalance: one stage has more work than the others, in every replica (loss, embedding).

Each replica's stages are compared with each other step by step, so that lengths of sequences and
slow steps cancel out; a slow worker counts as what its peers take.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis import few_steps
from app.diagnosis.case import Case
from app.diagnosis.detector import Costed, Detector, Suspicion
from app.diagnosis.finding import MIN_SCORE, Culprit, RuledOut
from app.diagnosis.scores import confidence, scores
from app.diagnosis.selecting import medians
from app.diagnosis.shortened import Shortened, whole_stretch
from app.diagnosis.slowness import NO_COMPUTATIONS, Slowness
from app.diagnosis.stretches import Stretches, spread_of_steps, stretches
from app.diagnosis.wording import sentence, times, who
from app.trace.window import Floats, Ints

# Stages of equally many layers differ by less.
LEAST_RATIO = 1.04
MIN_DEVIATIONS = 5.0
# A stage so much longer than the others leaves no doubt.
_CERTAIN = 1.3
# Standard errors.
_SURELY = 3.0
# The score of what may be chance.
_UNLIKELY = 0.49


@dataclass(frozen=True, slots=True)
class _Load:
    """Each stage against the others, what is usual among the dp ranks.

    Shapes: `ratio`, `forward` and `backward` [steps, pp]; `usual` [usual steps], the positions of
    those that `found`, the stretch of each stage, counts.
    """

    ratio: Floats
    forward: Floats
    backward: Floats
    usual: Ints
    found: Stretches


class StageImbalance(Detector):
    """Against the other stages, by what is usual among the dp ranks."""

    cause = "stage-imbalance"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        sizes = case.parallelism
        if sizes.pp_size == 1:
            return self._cannot_tell("with one stage there is nothing to compare it with")
        if sizes.dp_size == 1:
            return self._cannot_tell(
                "with one dp rank a stage with more work and a slow worker look the same"
            )
        if case.slowness is None:
            return self._cannot_tell(NO_COMPUTATIONS)
        load = _load(case.slowness)
        of_stages = _scores(load)
        if not of_stages.max() >= MIN_SCORE:
            return self._none(case, load, of_stages)
        borne_out = few_steps.is_borne_out(load.usual.size, _earlier(case), LEAST_RATIO)
        is_clear = load.found.mean >= few_steps.LEAST_RATIO
        likely = np.where(is_clear | borne_out, of_stages, np.minimum(of_stages, _UNLIKELY))
        if likely.max() < MIN_SCORE:
            return self._too_few(case, load, of_stages)
        return self._suspicion(case, load, likely, borne_out)

    def _cannot_tell(self, reason: str) -> RuledOut:
        return RuledOut(self.cause, reason, insufficient=True)

    def _none(self, case: Case, load: _Load, of_stages: Floats) -> RuledOut:
        ratio = load.ratio[load.usual].mean(axis=0)
        stage = int(np.argmax(ratio))
        return RuledOut(
            self.cause,
            f"no stage takes longer than the others: stage {stage} comes nearest, at "
            f"{times(float(ratio[stage]))} as long",
            score=float(of_stages.max()),
            figures={"slowdown_against_stages": float(ratio[stage]), "needed": LEAST_RATIO}
            | _m_s(case),
        )

    def _too_few(self, case: Case, load: _Load, of_stages: Floats) -> RuledOut:
        stage = int(np.argmax(of_stages * load.found.mean))
        ratio = float(load.found.mean[stage])
        why = few_steps.reason(load.usual.size, f"stage {stage}", times(ratio))
        figures = {"slowdown_against_stages": ratio, "needed": few_steps.LEAST_RATIO}
        return RuledOut(
            self.cause, why, insufficient=True, score=_UNLIKELY, figures=figures | _m_s(case)
        )

    def _suspicion(
        self, case: Case, load: _Load, of_stages: Floats, borne_out: NDArray[np.bool_]
    ) -> Suspicion:
        order = np.argsort(-of_stages * load.found.mean, kind="stable").tolist()
        hot = [stage for stage in order if of_stages[stage] >= MIN_SCORE]
        sure = confidence(float(load.found.deviations[hot[0]]), MIN_DEVIATIONS)
        blamed = tuple(Culprit(stage=stage) for stage in hot)
        ratio = float(load.found.mean[hot[0]])
        verb = "takes" if len(hot) == 1 else "take"
        fact = (
            f"{who(blamed, case.parallelism.pp_size)} {verb} {times(ratio)} as long as the others "
            "in every step"
        )

        def wording(costed: Costed) -> str:
            return sentence(fact, costed)

        return Suspicion(
            self.cause,
            float(of_stages.max()),
            sure if borne_out[hot[0]] else min(sure, few_steps.MOST_CONFIDENCE),
            blamed,
            wording,
            repair=_repair(case, load, hot),
            course=_course(case, load, hot),
            evidence=_evidence(case, load, hot),
        )


def _load(slowness: Slowness) -> _Load:
    forward_s, backward_s = slowness.as_peers
    ratio, forward, backward = (
        medians(against_others(took_s).transpose(0, 2, 1))
        for took_s in (forward_s + backward_s, forward_s, backward_s)
    )
    of_usual = ratio[slowness.usual]
    spread = spread_of_steps(of_usual)
    found = stretches(of_usual, spread, LEAST_RATIO - 1)
    return _Load(ratio, forward, backward, slowness.usual, found)


def against_others(took_s: Floats) -> Floats:
    """[steps, dp, pp], each stage by the lower median of the same replica's other stages."""
    order = np.sort(took_s, axis=2)
    middle = (took_s.shape[2] - 2) // 2
    # Without the stage itself the middle one is the next one for all stages up to it.
    others_s = np.where(took_s <= order[:, :, middle, None], order[:, :, middle + 1, None],
                        order[:, :, middle, None])  # fmt: skip
    return np.divide(took_s, others_s, out=np.ones(took_s.shape), where=others_s > 0)


def _scores(load: _Load) -> Floats:
    """[pp], 0..1; a ratio that may be chance stays below 0.5."""
    by_ratio = scores(load.found.mean, LEAST_RATIO, _CERTAIN)
    shown = load.found.deviations / MIN_DEVIATIONS
    is_lone = (load.found.end - load.found.first < 2) & (load.usual.size > 1)
    shown = np.where(is_lone, 0.0, np.minimum(shown, _is_so(load)))
    return np.where(shown >= 1, by_ratio, np.minimum(by_ratio, _UNLIKELY * shown))


def _is_so(load: _Load) -> Floats:
    """[pp], 0..1, 1 where a stage is longer by enough in all of the window, or surely in a part.

    The mean of its longest stretch alone says more than is true: the stretch is chosen by it.
    """
    found = load.found
    error = (found.mean - 1) / np.maximum(found.deviations, 1e-9)
    ratio = np.maximum(load.ratio[load.usual].mean(axis=0), found.mean - _SURELY * error)
    return np.asarray(np.clip((ratio - 1) / (LEAST_RATIO - 1), 0.0, 1.0))


def _repair(case: Case, load: _Load, hot: list[int]) -> Shortened:
    """The stages' computations as short as the others'."""
    shape = (len(case.steps), case.parallelism.dp_size, case.parallelism.pp_size)
    factors = np.ones(shape), np.ones(shape)
    for stage in hot:
        first, end = int(load.found.first[stage]), int(load.found.end[stage])
        stretch = whole_stretch(load.usual, first, end, shape[0])
        for side, factor in zip((load.forward, load.backward), factors, strict=True):
            factor[stretch, :, stage] = side[load.usual[first:end], stage].mean()
    return Shortened(case, *factors)


def _earlier(case: Case) -> Floats:
    """[earlier steps, pp], how much longer the stages took before the window; NaN = not known."""
    course = case.course
    before_s = course.signals["compute_s"][: course.num_before]
    return np.asarray(np.median(against_others(before_s), axis=1))


def _course(case: Case, load: _Load, hot: list[int]) -> Floats:
    """[steps of the course], how much longer the stages took than the others."""
    return np.asarray(np.concatenate([_earlier(case), load.ratio])[:, hot].max(axis=1))


def _m_s(case: Case) -> dict[str, float]:
    """Shares won back by fixing each stage, where anything is lost."""
    return {
        f"share_won_back_stage_{stage}": share
        for stage, share in enumerate(case.report.stage_share)
        if share is not None
    }


def _evidence(case: Case, load: _Load, hot: list[int]) -> dict[str, Any]:
    found, stage = load.found, hot[0]
    chosen = load.usual[found.first[stage] : found.end[stage]]
    return {
        "stages": hot,
        "optypes": ["forward-compute", "backward-compute"],
        "steps": case.steps[chosen].tolist(),
        "slowdown_against_stages": float(found.mean[stage]),
        "forward_slowdown": float(load.forward[chosen, stage].mean()),
        "backward_slowdown": float(load.backward[chosen, stage].mean()),
        "standard_errors": float(found.deviations[stage]),
        "share_won_back": case.report.stage_share[stage],
        "m_s": case.report.stage_share[-1],
    }
