"""expert-imbalance: some ranks of a mixture of experts (MoE) get more tokens than others.

Their computations of the micro-batch take longer, forward and backward alike; which rank that is
changes with the routing. Uneven sequences look much the same: stages, the balance within an
expert-parallel block, and token counts tell them apart.
"""

from functools import partial

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, finding_sentence, percent
from app.diagnosis.evidence.expert_load import (
    MAX_CONSERVED,
    MIN_COLUMN_R,
    MIN_SPREAD,
    NOT_TOLD_APART,
    ExpertLoad,
    expert_load,
    relative_loads,
)
from app.diagnosis.finding import RuledOut, score
from app.diagnosis.repair import Repaired, without_factor
from app.diagnosis.sentence import ARE, verb
from app.diagnosis.statistics.persistence import rotation
from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints

CERTAIN_SPREAD = 0.2
_CONFIDENCE = 0.9


class ExpertImbalance(Detector):
    """Uneven computations within expert-parallel blocks; no culprits, as routing changes."""

    cause = "expert-imbalance"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = case.cached(expert_load)
        if found is None:
            return RuledOut(
                self.cause, "too few computations to tell what varies with the experts' loads", True
            )
        figures = _figures(found)
        value = score(1 + found.spread, 1 + MIN_SPREAD, 1 + CERTAIN_SPREAD)
        if not found.varies:
            return RuledOut(
                self.cause,
                "computations of one micro-batch take about as long on all ranks of a stage, or "
                "forward and backward do not agree which takes longer",
                score=min(value, 0.49),
                figures=figures,
            )
        if case.parallelism.ep_size < 2:
            return _without_experts(found, figures)
        if found.by_sequences and not found.by_experts:
            return RuledOut(
                self.cause,
                "the computations vary with the sequences of their micro-batch",
                figures=figures,
            )
        if not found.by_experts:
            return RuledOut(self.cause, NOT_TOLD_APART, insufficient=True, figures=figures)
        return _suspicion(case, found, value, figures)


def _without_experts(found: ExpertLoad, figures: dict[str, float]) -> RuledOut:
    """Of a job that does not say that it has experts."""
    cause = ExpertImbalance.cause
    if found.by_sequences or found.stages_r is None:
        return RuledOut(cause, "the job names no experts (ep_size is 1)", figures=figures)
    return RuledOut(
        cause,
        "computations vary by rank, stage and micro-batch, as uneven experts make them, but the "
        "job names no experts (ep_size is 1)",
        insufficient=True,
        figures=figures,
    )


def _figures(found: ExpertLoad) -> dict[str, float]:
    known = {
        "load_spread": found.spread,
        "pearson_r": found.pearson_r,
        "pearson_r_between_stages": found.stages_r,
        "block_variance_ratio": found.conserved,
        "pearson_r_with_tokens": found.tokens_r,
        "pearson_r_with_lengths_squared": found.squares_r,
    }
    return {name: figure for name, figure in known.items() if figure is not None}


_DIFFER, _FOLLOW = verb("differ", "differed"), verb("follow", "followed")


def _suspicion(case: Case, found: ExpertLoad, value: float, figures: dict[str, float]) -> Suspicion:
    hottest = case.joined(lambda group: _of_steps(_load_of_group(case, group.replayer)))
    by_tokens = found.tokens_r is not None and found.tokens_r >= MIN_COLUMN_R
    fact = (
        f"loads of the experts {ARE} uneven: computations of the same micro-batch {_DIFFER} by "
        f"{percent(found.spread)} between the ranks of an expert-parallel block, forward and "
        "backward alike" + (f", and {_FOLLOW} the number of tokens" if by_tokens else "")
    )
    return Suspicion(
        cause=ExpertImbalance.cause,
        score=value,
        confidence=_CONFIDENCE * (1.0 if by_tokens or found.conserved <= MAX_CONSERVED else 0.9),
        culprits=(),
        wording=partial(finding_sentence, fact),
        repair=lambda group: _repaired(case, group),
        badness=_badness(case, hottest),
        persistence=rotation(hottest.argmax(axis=1)) or "chronic",
        evidence={
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[case.usual_steps].tolist(),
            **figures,
        },
    )


def _load_of_group(case: Case, replayer: Replayer) -> Floats:
    """[dp, pp, items, steps], load over the mean of the block for the same micro-batch."""
    loads = relative_loads(case, case.group_of(replayer))
    if loads is None:
        return np.ones((replayer.dp_size, replayer.pp_size, 1, len(replayer.steps)))
    # The smaller of the directions: a pause is in one of them only.
    load = np.minimum(*loads)
    ep_size = case.parallelism.ep_size
    blocks = load.reshape(-1, ep_size, *load.shape[1:])
    even = blocks / np.maximum(blocks.mean(axis=1, keepdims=True), 1e-9)
    return np.asarray(even.reshape(load.shape))


def _of_steps(load: Floats) -> Floats:
    """[steps, workers], a worker's mean load in each step."""
    by_step = load.mean(axis=2)
    return np.asarray(by_step.reshape(-1, by_step.shape[2]).T)


def _badness(case: Case, hottest: Floats) -> Floats:
    """[steps of the extended history], load of the hottest worker over an even one."""
    before = np.full(case.extended_history.num_before, np.nan)
    return np.concatenate([before, hottest.max(axis=1)])


def _repaired(case: Case, group: Replayer) -> Repaired:
    """Each micro-batch with even loads in every block; the same work in all."""
    features = case.group_of(group)
    load = _load_of_group(case, group)
    rows, durations_s = [np.empty(0, np.int64)], [np.empty((0, group.grid.start_s.shape[1]))]
    for side in (features.forward, features.backward):
        if side is None or side.shared.size != load.shape[2]:
            continue
        for stage in range(group.pp_size):
            of_stage = side.rows[stage, side.shared]
            for part in range(of_stage.shape[1]):
                own = of_stage[:, part]
                known: Ints = np.flatnonzero(own >= 0)
                lanes = load[:, stage, known].transpose(1, 0, 2).reshape(known.size, -1)
                recorded_s = group.durations.recorded_s[own[known]]
                usual_s = lanes * np.median(recorded_s / lanes, axis=1, keepdims=True)
                rows.append(own[known])
                durations_s.append(without_factor(recorded_s, lanes, usual_s))
    return Repaired(np.concatenate(rows), np.concatenate(durations_s))
