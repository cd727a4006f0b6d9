"""stage-imbalance: one stage has more work than the others in every replica (loss, embedding).

Stages of a replica are compared step by step, so sequence lengths and slow steps cancel out. A slow
worker counts with its peers' time.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    MAX_CONFIDENCE,
    MIN_CLEAR_RATIO,
    Detector,
    Suspicion,
    as_ratio,
    finding_sentence,
    is_supported,
    names_of,
    too_few_steps_reason,
)
from app.diagnosis.evidence.slowness import NO_COMPUTATIONS, Slowness
from app.diagnosis.finding import MIN_SCORE, Culprit, RuledOut, confidence, scores
from app.diagnosis.repair import ShortenedComputations, stretch_slice
from app.diagnosis.statistics.robust import Stretches, medians, spread_of_steps, stretches
from app.trace.window import Floats, Ints

# Stages of equally many layers differ by less.
MIN_RATIO = 1.04
MIN_DEVIATIONS = 5.0
# Score 1 from this ratio.
_CERTAIN_RATIO = 1.3
# Standard errors.
_CERTAIN_DEVIATIONS = 3.0
# The score of what may be chance.
_CHANCE_SCORE = 0.49


@dataclass(frozen=True, slots=True)
class _StageLoad:
    """Time of each stage over the others', median over dp ranks.

    Shapes: `ratio`, `forward` and `backward` [steps, pp]; `usual` [usual steps], the positions that
    `found`, the slowest stretch of each stage, counts.
    """

    ratio: Floats
    forward: Floats
    backward: Floats
    usual: Ints
    found: Stretches


class StageImbalance(Detector):
    """Compares each stage with the others, by the median over dp ranks."""

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
        has_support = is_supported(load.usual.size, _earlier(case), MIN_RATIO)
        is_clear = load.found.mean >= MIN_CLEAR_RATIO
        likely = np.where(is_clear | has_support, of_stages, np.minimum(of_stages, _CHANCE_SCORE))
        if likely.max() < MIN_SCORE:
            return self._too_few(case, load, of_stages)
        return self._suspicion(case, load, likely, has_support)

    def _cannot_tell(self, reason: str) -> RuledOut:
        return RuledOut(self.cause, reason, insufficient=True)

    def _none(self, case: Case, load: _StageLoad, of_stages: Floats) -> RuledOut:
        ratio = load.ratio[load.usual].mean(axis=0)
        stage = int(np.argmax(ratio))
        return RuledOut(
            self.cause,
            f"no stage is long: the slowest, stage {stage}, takes "
            f"{as_ratio(float(ratio[stage]))} the mean",
            score=float(of_stages.max()),
            figures={"slowdown_against_stages": float(ratio[stage]), "needed": MIN_RATIO}
            | _m_s(case),
        )

    def _too_few(self, case: Case, load: _StageLoad, of_stages: Floats) -> RuledOut:
        stage = int(np.argmax(of_stages * load.found.mean))
        ratio = float(load.found.mean[stage])
        why = too_few_steps_reason(load.usual.size, f"stage {stage}", as_ratio(ratio))
        figures = {"slowdown_against_stages": ratio, "needed": MIN_CLEAR_RATIO}
        return RuledOut(
            self.cause, why, insufficient=True, score=_CHANCE_SCORE, figures=figures | _m_s(case)
        )

    def _suspicion(
        self, case: Case, load: _StageLoad, of_stages: Floats, has_support: NDArray[np.bool_]
    ) -> Suspicion:
        order = np.argsort(-of_stages * load.found.mean, kind="stable").tolist()
        slow_stages = [stage for stage in order if of_stages[stage] >= MIN_SCORE]
        sure = confidence(float(load.found.standard_errors[slow_stages[0]]), MIN_DEVIATIONS)
        culprits = tuple(Culprit(stage=stage) for stage in slow_stages)
        ratio = float(load.found.mean[slow_stages[0]])
        verb = "takes" if len(slow_stages) == 1 else "take"
        fact = (
            f"{names_of(culprits, case.parallelism.pp_size)} {verb} {as_ratio(ratio)} as long as "
            "the others in every step"
        )

        return Suspicion(
            self.cause,
            float(of_stages.max()),
            sure if has_support[slow_stages[0]] else min(sure, MAX_CONFIDENCE),
            culprits,
            partial(finding_sentence, fact),
            repair=_repair(case, load, slow_stages),
            badness=_badness(case, load, slow_stages),
            evidence=_evidence(case, load, slow_stages),
        )


def _load(slowness: Slowness) -> _StageLoad:
    forward_s, backward_s = slowness.as_peers
    by_dp_rank = [against_others(each) for each in (forward_s + backward_s, forward_s, backward_s)]
    ratio, forward, backward = (medians(each.transpose(0, 2, 1)) for each in by_dp_rank)
    of_usual = ratio[slowness.usual]
    spread = spread_of_steps(of_usual)
    found = stretches(of_usual, spread, MIN_RATIO - 1)
    return _StageLoad(ratio, forward, backward, slowness.usual, found)


def against_others(took_s: Floats) -> Floats:
    """[steps, dp, pp], each stage over the lower median of its replica's other stages."""
    order = np.sort(took_s, axis=2)
    middle = (took_s.shape[2] - 2) // 2
    # Leaving out a stage at or below the middle moves the median to the next one.
    others_s = np.where(took_s <= order[:, :, middle, None], order[:, :, middle + 1, None],
                        order[:, :, middle, None])  # fmt: skip
    return np.divide(took_s, others_s, out=np.ones(took_s.shape), where=others_s > 0)


def _scores(load: _StageLoad) -> Floats:
    """[pp], 0..1; a ratio that may be chance stays below 0.5."""
    by_ratio = scores(load.found.mean, MIN_RATIO, _CERTAIN_RATIO)
    shown = load.found.standard_errors / MIN_DEVIATIONS
    is_lone = (load.found.end - load.found.first < 2) & (load.usual.size > 1)
    shown = np.where(is_lone, 0.0, np.minimum(shown, _slowness_shown(load)))
    return np.where(shown >= 1, by_ratio, np.minimum(by_ratio, _CHANCE_SCORE * shown))


def _slowness_shown(load: _StageLoad) -> Floats:
    """[pp], 0..1, 1 where a stage is slow over the whole window, or surely within its stretch.

    The stretch is chosen for its mean, so that overstates the ratio by some standard errors.
    """
    found = load.found
    error = (found.mean - 1) / np.maximum(found.standard_errors, 1e-9)
    ratio = np.maximum(
        load.ratio[load.usual].mean(axis=0), found.mean - _CERTAIN_DEVIATIONS * error
    )
    return np.asarray(np.clip((ratio - 1) / (MIN_RATIO - 1), 0.0, 1.0))


def _repair(case: Case, load: _StageLoad, slow_stages: list[int]) -> ShortenedComputations:
    """The stages' computations at the others' speed."""
    shape = (len(case.steps), case.parallelism.dp_size, case.parallelism.pp_size)
    factors = np.ones(shape), np.ones(shape)
    for stage in slow_stages:
        first, end = int(load.found.first[stage]), int(load.found.end[stage])
        stretch = stretch_slice(load.usual, first, end, shape[0])
        for side, factor in zip((load.forward, load.backward), factors, strict=True):
            factor[stretch, :, stage] = side[load.usual[first:end], stage].mean()
    return ShortenedComputations(case, *factors)


def _earlier(case: Case) -> Floats:
    """[earlier steps, pp], ratios of the stages before the window; NaN = unknown."""
    history = case.extended_history
    before_s = history.signals["compute_s"][: history.num_before]
    return np.asarray(np.median(against_others(before_s), axis=1))


def _badness(case: Case, load: _StageLoad, slow_stages: list[int]) -> Floats:
    """[steps of the extended history], the highest ratio of these stages."""
    return np.asarray(np.concatenate([_earlier(case), load.ratio])[:, slow_stages].max(axis=1))


def _m_s(case: Case) -> dict[str, float]:
    """Shares won back by fixing each stage, where anything is lost."""
    return {
        f"share_won_back_stage_{stage}": share
        for stage, share in enumerate(case.report.stage_share)
        if share is not None
    }


def _evidence(case: Case, load: _StageLoad, slow_stages: list[int]) -> dict[str, Any]:
    found, stage = load.found, slow_stages[0]
    chosen = load.usual[found.first[stage] : found.end[stage]]
    return {
        "stages": slow_stages,
        "optypes": ["forward-compute", "backward-compute"],
        "steps": case.steps[chosen].tolist(),
        "slowdown_against_stages": float(found.mean[stage]),
        "forward_slowdown": float(load.forward[chosen, stage].mean()),
        "backward_slowdown": float(load.backward[chosen, stage].mean()),
        "standard_errors": float(found.standard_errors[stage]),
        "share_won_back": case.report.stage_share[stage],
        "m_s": case.report.stage_share[-1],
    }
