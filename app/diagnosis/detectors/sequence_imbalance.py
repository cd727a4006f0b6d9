"""sequence-imbalance: micro-batches of long sequences take longer, on changing dp ranks.

Forward and backward times of a worker correlate (r) and vary beyond noise (CV, the coefficient of
variation). Healthy workers reach r = 0.92 by clock noise alone, and a CV of 0.015 to 0.03.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    finding_sentence,
    names_of,
    percent,
    step_by_step,
)
from app.diagnosis.evidence.expert_load import NOT_TOLD_APART, is_not_told_apart
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
from app.diagnosis.finding import MIN_SCORE, score
from app.diagnosis.repair import repaired_parts, without_factor
from app.diagnosis.statistics.persistence import rotation
from app.engine.what_if import Replayer
from app.result.finding import Culprit, RuledOut
from app.result.sentence import ARE, IS
from app.trace.window import Floats, Ints

# Both are needed (Lin et al., OSDI 2025).
MIN_R = 0.9
MIN_VARIATION = 0.05
# CV of the published jobs with this cause.
_CERTAIN = 0.18
# A micro-batch is long on all stages of its replica, while clock noise differs by worker.
MIN_STAGES_R = 0.6
# Independent lengths vary as much within a step as between steps. A worker that is slow for whole
# steps does not: of its variance a few hundredths are within steps.
MIN_WITHIN_STEPS = 0.35
# Least r of times with squared lengths, where these are sent.
MIN_LENGTH_R = 0.5


class SequenceImbalance(Detector):
    """No culprit, as another dp rank is slow in every step, unless lengths show one."""

    cause = "sequence-imbalance"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if slowness(case) is None:
            return self.cannot_tell(NO_COMPUTATIONS)
        found = variation(case)
        if found is None:
            return self.cannot_tell("too few computations to tell what varies with lengths")
        of_lengths = column_r(case, "seq_len_sq")
        figures = _figures(found, of_lengths)
        value, reason = _score_and_reason(found, of_lengths)
        if reason is not None:
            return self.denied(reason, value, **figures)
        if is_not_told_apart(case):
            return self.cannot_tell(NOT_TOLD_APART, **figures)
        return self._suspicion(case, found, value, figures)

    def _suspicion(
        self, case: Case, found: Variation, value: float, figures: dict[str, float]
    ) -> Suspicion:
        longest = case.joined(lambda group: common_factor(case, group).mean(axis=1).T)
        uneven, culprits = uneven_replicas(case), tuple[Culprit, ...]()
        if uneven is not None:
            culprits = tuple(Culprit(dp_rank=int(at)) for at in np.flatnonzero(uneven))
        one = "dp rank" if case.parallelism.dp_size > 1 else "micro-batch"
        steps = case.steps[usual_steps(case)]
        where = f": a different {one} {IS} slow {step_by_step(steps.size, case.steps.size)}"
        if culprits:
            where = f" on {names_of(culprits)} alone"
        return Suspicion(
            self.cause,
            value,
            min(0.99, 0.5 + 0.49 * _r(found)),
            culprits,
            partial(finding_sentence, f"Sequence lengths {ARE} uneven{where}"),
            repair=lambda group: repaired_parts(group, _repaired(case, group)),
            # Work of the busiest replica over its share.
            badness=case.extended_history.of_window(longest.max(axis=1)),
            persistence="chronic" if culprits else rotation(longest.argmax(axis=1)),
            evidence={
                "optypes": ["forward-compute", "backward-compute"],
                "steps": steps.tolist(),
                **figures,
            },
        )


def _r(found: Variation) -> float:
    """r of one worker, or of a replica's stages together where that is higher."""
    return max(found.pearson_r, found.replica_r or 0.0)


def _score_and_reason(found: Variation, of_lengths: float | None) -> tuple[float, str | None]:
    """The score, and the reason against the cause, if any."""
    spread, r = found.coefficient_of_variation, _r(found)
    value = score(1 + spread, 1 + MIN_VARIATION, 1 + _CERTAIN)
    if spread < MIN_VARIATION:
        return value, (
            f"a worker's computations vary by {percent(spread)} of their mean, and less than "
            f"{percent(MIN_VARIATION)} may be chance"
        )
    if r < MIN_R:
        return min(value, MIN_SCORE * max(r, 0.0) / MIN_R), (
            f"a worker's computations vary, but forward and backward do not go together: r is "
            f"{r:.2f}, and lengths make it {MIN_R} or more"
        )
    if found.stages_r is not None and found.stages_r < MIN_STAGES_R:
        return min(value, MIN_SCORE * max(found.stages_r, 0.0)), (
            "a worker's computations vary, but those of the same micro-batch on other stages do "
            f"not: r is {found.stages_r:.2f}"
        )
    if found.within_steps is not None and found.within_steps < MIN_WITHIN_STEPS:
        return min(value, MIN_SCORE * found.within_steps / MIN_WITHIN_STEPS), (
            "a worker's computations vary from step to step, but those of one step take alike: "
            "each sequence would lengthen its own micro-batch"
        )
    if of_lengths is not None and of_lengths < MIN_LENGTH_R:
        return min(value, MIN_SCORE * max(of_lengths, 0.0)), (
            f"computations vary, but not with the lengths that were sent: r is {of_lengths:.2f}"
        )
    return value, None


def _figures(found: Variation, of_lengths: float | None) -> dict[str, float]:
    known = {
        "pearson_r": found.pearson_r,
        "coefficient_of_variation": found.coefficient_of_variation,
        "pearson_r_of_replicas": found.replica_r,
        "pearson_r_between_stages": found.stages_r,
        "pearson_r_with_lengths_squared": of_lengths,
        "variance_within_steps": found.within_steps,
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
