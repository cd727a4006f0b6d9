"""expert-imbalance: some ranks of a mixture of experts (MoE) get more tokens than others.

Their computations of the micro-batch take longer, forward and backward alike; which rank that is
changes with the routing. Uneven sequences look much the same: stages, the balance within an
expert-parallel block, and token counts tell them apart.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    as_ratio,
    finding_sentence,
    names_of,
    percent,
)
from app.diagnosis.evidence.expert_levels import expert_levels, expert_times, uneven_workers
from app.diagnosis.evidence.expert_load import (
    MAX_CONSERVED,
    MIN_COLUMN_R,
    MIN_SPREAD,
    NOT_TOLD_APART,
    ExpertLoad,
    expert_load,
)
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.finding import Worker, group_culprits, score
from app.diagnosis.repair import repaired_parts, without_factor
from app.diagnosis.statistics.persistence import rotation
from app.engine.what_if import Replayer
from app.result.finding import Culprit, RuledOut
from app.result.sentence import ARE, TAKE, verb
from app.trace.window import Floats, Ints

CERTAIN_SPREAD = 0.2
_CONFIDENCE = 0.9


class ExpertImbalance(Detector):
    """Uneven computations within expert-parallel blocks; no culprits, as routing changes."""

    cause = "expert-imbalance"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = expert_load(case)
        if found is None:
            return self.cannot_tell(
                "too few computations to tell what varies with the experts' loads"
            )
        figures = _figures(found)
        value = score(1 + found.spread, 1 + MIN_SPREAD, 1 + CERTAIN_SPREAD)
        if not found.varies:
            reason = (
                "computations vary, but neighbouring micro-batches alike: no load of experts"
                if found.varying.any()
                else "computations of one micro-batch take about as long on all ranks of a stage, "
                "or forward and backward do not agree which takes longer"
            )
            return self.denied(reason, min(value, 0.49), **figures)
        if case.parallelism.ep_size < 2:
            if found.by_sequences or found.stages_r is None:
                return self.denied("the job names no experts (ep_size is 1)", **figures)
            return self.cannot_tell(
                "computations vary by rank, stage and micro-batch, as uneven experts make them, "
                "but the job names no experts (ep_size is 1)",
                **figures,
            )
        if found.by_experts:
            return _suspicion(case, found, value, figures)
        if found.by_sequences:
            reason = "the computations vary with the sequences of their micro-batch"
            return self.denied(reason, **figures)
        return self.cannot_tell(NOT_TOLD_APART, **figures)


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
    hottest = case.joined(lambda group: _of_steps(_times_of_group(case, group.replayer)))
    by_tokens = found.tokens_r is not None and found.tokens_r >= MIN_COLUMN_R
    is_sure = by_tokens or found.is_together or found.conserved <= MAX_CONSERVED
    workers = _block_workers(case, found)
    culprits = group_culprits(workers, {}, case.parallelism)
    slowdown = _slowdown_of(case, workers)
    fact = _fact_of_block(culprits, slowdown) if workers else _fact(found, by_tokens=by_tokens)
    return Suspicion(
        cause=ExpertImbalance.cause,
        score=value,
        confidence=_CONFIDENCE * (1.0 if is_sure else 0.9),
        culprits=culprits,
        wording=partial(finding_sentence, fact + (", and go with the tokens" if by_tokens else "")),
        repair=lambda group: repaired_parts(group, _repaired(case, group)),
        # Load of the hottest worker over an even one.
        badness=case.extended_history.of_window(hottest.max(axis=1)),
        persistence=rotation(hottest.argmax(axis=1)) or "chronic",
        evidence={
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[usual_steps(case)].tolist(),
            **(
                {
                    "dp_ranks": sorted({dp_rank for dp_rank, _ in workers}),
                    "slowdown_against_blocks": slowdown,
                }
                if workers
                else {}
            ),
            **figures,
        },
    )


def _fact(found: ExpertLoad, *, by_tokens: bool) -> str:
    return (
        f"loads of the experts {ARE} uneven: computations of the same micro-batch {_DIFFER} by "
        f"{percent(found.spread)} between the ranks of an expert-parallel block, forward and "
        "backward alike" + (f", and {_FOLLOW} the number of tokens" if by_tokens else "")
    )


def _block_workers(case: Case, found: ExpertLoad) -> list[Worker]:
    """Workers of blocks that wait for their fullest expert, where other blocks have even loads."""
    uneven = uneven_workers(case, found)
    if not found.is_together or uneven.all(axis=0).any():
        return []
    return [(int(dp_rank), int(stage)) for dp_rank, stage in np.argwhere(uneven)]


def _slowdown_of(case: Case, workers: list[Worker]) -> float:
    """How many times as long these workers compute as those of the other blocks, on average."""
    levels = expert_levels(case)
    if levels is None or not workers:
        return 1.0
    return float(np.mean([levels.worker[worker] for worker in workers]))


def _fact_of_block(culprits: tuple[Culprit, ...], slowdown: float) -> str:
    return (
        f"loads of the experts {ARE} uneven in the expert-parallel block of {names_of(culprits)}: "
        f"all its ranks {TAKE} longer for the same micro-batches, {as_ratio(slowdown)} as long as "
        "the other blocks on average, forward and backward alike"
    )


def _times_of_group(case: Case, replayer: Replayer) -> Floats:
    """[dp, pp, items, steps], time over that with even loads."""
    found = expert_times(case, case.group_of(replayer))
    if found is None:
        return np.ones((replayer.dp_size, replayer.pp_size, 1, len(replayer.steps)))
    return np.maximum(found, 1e-3)


def _of_steps(load: Floats) -> Floats:
    """[steps, workers], a worker's mean load in each step."""
    by_step = load.mean(axis=2)
    return np.asarray(by_step.reshape(-1, by_step.shape[2]).T)


def _repaired(case: Case, group: Replayer) -> Iterator[tuple[Ints, Floats]]:
    """Each micro-batch with even loads."""
    features, load = case.group_of(group), _times_of_group(case, group)
    for side in (features.forward, features.backward):
        if side is None or side.shared.size != load.shape[2]:
            continue
        for stage in range(group.pp_size):
            of_stage = side.rows[stage, side.shared]
            for part in of_stage.T:
                known: Ints = np.flatnonzero(part >= 0)
                lanes = load[:, stage, known].transpose(1, 0, 2).reshape(known.size, -1)
                recorded_s = group.durations.recorded_s[part[known]]
                usual_s = lanes * np.median(recorded_s / lanes, axis=1, keepdims=True)
                yield part[known], without_factor(recorded_s, lanes, usual_s)
