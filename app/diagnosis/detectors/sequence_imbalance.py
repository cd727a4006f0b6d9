"""sequence-imbalance: micro-batches of long sequences take longer, on changing dp ranks.

Forward and backward times of a worker correlate (r) and vary beyond noise (CV, the coefficient of
variation).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, as_ratio, names_of, step_by_step
from app.diagnosis.evidence.expert_load import NOT_TOLD_APART, is_not_told_apart
from app.diagnosis.evidence.long_microbatches import LIMITS as LONG_LIMITS
from app.diagnosis.evidence.long_microbatches import (
    LongMicroBatches,
    always_long,
    long_microbatches,
)
from app.diagnosis.evidence.sequence_lengths import (
    Variation,
    column_r,
    common_factor,
    rows_and_items,
    uneven_replicas,
    variation,
)
from app.diagnosis.evidence.slowness import NO_COMPUTATIONS, slowness
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.features import Features
from app.diagnosis.finding import MIN_SCORE, score
from app.diagnosis.repair import repaired_parts, without_factor
from app.diagnosis.statistics.persistence import Onset, rotation
from app.engine.what_if import Replayer
from app.formatting import percent
from app.result.finding import Culprit, RuledOut
from app.result.words import ARE, IS, TAKE, TAKES
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """Thresholds of sequence-imbalance. All were chosen, unless a comment says otherwise."""

    # r and CV: both are needed (Lin et al., OSDI 2025), as healthy workers reach
    # r = 0.92 by clock noise alone, and a CV of 0.015 to 0.03.
    min_r: float = 0.9
    min_variation: float = 0.05
    # Score 1 from this CV: that of the published jobs with this cause.
    certain_variation: float = 0.18
    # r between stages: a micro-batch is long on all stages of its replica, while clock noise
    # differs by worker.
    min_stages_r: float = 0.6
    # Share of the variance within steps. Independent lengths vary as much within a step as between
    # steps; of the variance of a worker that is slow for whole steps a few hundredths are within.
    min_within_steps: float = 0.35
    # r of times with squared lengths, where these are sent.
    min_length_r: float = 0.5
    # Confidence by r: from the least, at r = 0, to the most.
    least_confidence: float = 0.5
    confidence_by_r: float = 0.49
    most_confidence: float = 0.99


LIMITS = SequenceLimits()
# More micro-batches are counted, not listed.
_MAX_LISTED = 3


class SequenceImbalance(Detector):
    """No culprit, as another dp rank is slow in every step, unless lengths show one."""

    cause = "sequence-imbalance"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if slowness(case) is None:
            return self.cannot_tell(NO_COMPUTATIONS)
        varying = variation(case)
        if varying is None:
            return self.cannot_tell("too few computations to tell what varies with lengths")
        of_lengths, long = column_r(case, "seq_len_sq"), always_long(case)
        figures = _figures(varying, of_lengths)
        if long is None:
            value, reason = _score_and_reason(varying, of_lengths)
        else:
            certain = 1 + LIMITS.certain_variation
            value = score(long.times_as_long, LONG_LIMITS.min_ratio, certain)
            reason = _reason_by_lengths(of_lengths)
        if reason is not None:
            return self.denied(reason, value, **figures)
        if is_not_told_apart(case):
            return self.cannot_tell(NOT_TOLD_APART, **figures)
        return self._suspicion(case, varying, value, figures)

    def _suspicion(
        self, case: Case, varying: Variation, value: float, figures: dict[str, float]
    ) -> Suspicion:
        longest = case.joined(lambda group: common_factor(case, group).mean(axis=1).T)
        uneven, steps = uneven_replicas(case), case.steps[usual_steps(case)]
        dp_ranks = [] if uneven is None else np.flatnonzero(uneven).tolist()
        culprits = tuple(Culprit(dp_rank=dp_rank) for dp_rank in dp_ranks)
        one = "dp rank" if case.parallelism.dp_size > 1 else "micro-batch"
        where = f": a different {one} {IS} slow {step_by_step(steps.size, case.steps.size)}"
        sure = LIMITS.least_confidence + LIMITS.confidence_by_r * _r(varying)
        long = always_long(case)
        if culprits:
            where = f" on {names_of(culprits)} alone"
        if long is not None:
            steps = case.steps[np.flatnonzero(_has_long(case))]
            of_culprits = f" on {names_of(culprits)}" if culprits else ""
            where = f"{of_culprits}: {_long_fact(case, long)} "
            where += step_by_step(steps.size, case.steps.size)
            sure = LIMITS.most_confidence
        return Suspicion(
            self.cause,
            value,
            min(LIMITS.most_confidence, sure),
            culprits,
            f"Sequence lengths {ARE} uneven{where}",
            repair=lambda group: repaired_parts(group, _repaired(case, group)),
            # Work of the busiest replica over its share.
            badness=case.extended_history.of_window(longest.max(axis=1)),
            onset=Onset(None, "chronic" if culprits or long else rotation(longest.argmax(axis=1))),
            evidence={
                "optypes": ["forward-compute", "backward-compute"],
                **({} if long is None else {"microbatches": list(long.numbers)}),
                "steps": steps.tolist(),
                **figures,
            },
        )


def _has_long(case: Case) -> NDArray[np.bool_]:
    """[steps], whether some replica has a micro-batch that is always long."""

    def of_group(group: Features) -> Floats:
        long = long_microbatches(case, group)
        if long is None:
            return np.zeros(len(group.steps))
        return np.asarray(long.is_long.any(axis=(0, 1)), np.float64)

    return np.asarray(case.joined(of_group) > 0)


def _long_fact(case: Case, long: LongMicroBatches) -> str:
    numbers, dp_ranks, ratio = long.numbers, long.dp_ranks, as_ratio(long.times_as_long)
    listed = " and ".join(", ".join(map(str, numbers)).rsplit(", ", 1))
    subject = f"{'micro-batch' if len(numbers) == 1 else 'micro-batches'} {listed}"
    if len(numbers) > _MAX_LISTED:
        subject = f"the same {len(numbers)} micro-batches"
    if len(dp_ranks) == 1 and case.parallelism.dp_size > 1:
        subject += f" of dp {dp_ranks[0]}"
    elif not long.in_each:
        subject += " of one dp rank or another"
    return f"{subject} {TAKE if len(numbers) > 1 else TAKES} {ratio} as long as the others"


def _r(varying: Variation) -> float:
    """r of one worker, or of a replica's stages together where that is higher."""
    return max(varying.pearson_r, varying.replica_r or 0.0)


def _score_and_reason(varying: Variation, of_lengths: float | None) -> tuple[float, str | None]:
    """The score, and the reason against the cause, if any."""
    spread, r = varying.coefficient_of_variation, _r(varying)
    value = score(1 + spread, 1 + LIMITS.min_variation, 1 + LIMITS.certain_variation)
    if spread < LIMITS.min_variation:
        return value, (
            f"a worker's computations vary by {percent(spread)} of their mean, and less than "
            f"{percent(LIMITS.min_variation)} may be chance"
        )
    if r < LIMITS.min_r:
        return min(value, MIN_SCORE * max(r, 0.0) / LIMITS.min_r), (
            f"a worker's computations vary, but forward and backward do not go together: r is "
            f"{r:.2f}, and lengths make it {LIMITS.min_r} or more"
        )
    if varying.stages_r is not None and varying.stages_r < LIMITS.min_stages_r:
        return min(value, MIN_SCORE * max(varying.stages_r, 0.0)), (
            "a worker's computations vary, but those of the same micro-batch on other stages do "
            f"not: r is {varying.stages_r:.2f}"
        )
    if varying.within_steps is not None and varying.within_steps < LIMITS.min_within_steps:
        return min(value, MIN_SCORE * varying.within_steps / LIMITS.min_within_steps), (
            "a worker's computations vary from step to step, but those of one step take alike: "
            "each sequence would lengthen its own micro-batch"
        )
    reason = _reason_by_lengths(of_lengths)
    return value if reason is None else min(value, MIN_SCORE * max(of_lengths or 0.0, 0.0)), reason


def _reason_by_lengths(of_lengths: float | None) -> str | None:
    if of_lengths is None or of_lengths >= LIMITS.min_length_r:
        return None
    return f"computations vary, but not with the lengths that were sent: r is {of_lengths:.2f}"


def _figures(varying: Variation, of_lengths: float | None) -> dict[str, float]:
    known = {
        "pearson_r": varying.pearson_r,
        "coefficient_of_variation": varying.coefficient_of_variation,
        "pearson_r_of_replicas": varying.replica_r,
        "pearson_r_between_stages": varying.stages_r,
        "pearson_r_with_lengths_squared": of_lengths,
        "variance_within_steps": varying.within_steps,
    }
    return {name: figure for name, figure in known.items() if figure is not None}


def _repaired(case: Case, group: Replayer) -> Iterator[tuple[Ints, Floats]]:
    """The same work in every step, evenly distributed."""
    features = case.group_of(group)
    common = common_factor(case, features)
    for side in (features.forward, features.backward):
        if side is not None:
            rows, item = rows_and_items(side)
            lanes = common[:, item].transpose(1, 0, 2).reshape(rows.size, -1)
            recorded_s = group.durations.recorded_s[rows]
            usual_s = lanes * (recorded_s / lanes).mean(axis=1, keepdims=True)
            yield rows, without_factor(recorded_s, lanes, usual_s)
