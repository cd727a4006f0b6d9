"""expert-imbalance: some ranks of a mixture of experts (MoE) get more tokens than others.

Their computations of the micro-batch take longer, forward and backward alike; which rank that is
changes with the routing. Uneven sequences look much the same: stages, the balance within an
expert-parallel block, and token counts tell them apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, as_ratio, names_of
from app.diagnosis.evidence.expert_levels import expert_levels, expert_times, uneven_workers
from app.diagnosis.evidence.expert_load import LIMITS as LOAD_LIMITS
from app.diagnosis.evidence.expert_load import NOT_TOLD_APART, ExpertLoad, expert_load
from app.diagnosis.evidence.hot_experts import HotExperts, hot_experts
from app.diagnosis.evidence.interruptions import workers_where
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.finding import Worker, group_culprits, score
from app.diagnosis.repair import ShortenedComputations, repaired_parts, without_factor
from app.diagnosis.statistics.persistence import Onset, rotation
from app.engine.what_if import Replayer
from app.formatting import percent
from app.result.finding import Culprit, RuledOut
from app.result.words import ARE, TAKE, verb
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class ExpertLimits:
    """Scores of expert-imbalance, and its repair. All were chosen."""

    # Score 1 from this variation of the loads within a block (standard deviation over mean).
    certain_spread: float = 0.2
    # Confidence, and its share where only the timings say that it is the experts: no token counts,
    # no whole block that waits, no load that is conserved within a block.
    confidence: float = 0.9
    share_by_timings_alone: float = 0.9
    # The score of what varies otherwise than experts do: below that from which causes are named.
    max_score_denied: float = 0.49
    # The score of hot experts that stay for some steps, which their own rules are sure of.
    score_of_hot: float = 0.9
    # Time over that with even loads, at least: nothing is divided by less.
    min_load: float = 1e-3


LIMITS = ExpertLimits()


class ExpertImbalance(Detector):
    """Uneven computations within expert-parallel blocks; no culprits, as routing changes."""

    cause = "expert-imbalance"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        load, hot = expert_load(case), hot_experts(case)
        # What lasts is said as what moves, if it does.
        if hot is not None and (load is None or load.has_lasting or not load.is_by_routing):
            return _suspicion_of_hot(case, hot)
        if load is None:
            return self.cannot_tell(
                "too few computations to tell what varies with the experts' loads"
            )
        figures = _figures(load)
        value = score(1 + load.spread, 1 + LOAD_LIMITS.min_spread, 1 + LIMITS.certain_spread)
        if not load.varies:
            reason = (
                "computations vary, but neighbouring micro-batches alike: no load of experts"
                if load.varying.any()
                else "computations of one micro-batch take about as long on all ranks of a stage, "
                "or forward and backward do not agree which takes longer"
            )
            return self.denied(reason, min(value, LIMITS.max_score_denied), **figures)
        if case.parallelism.ep_size < 2:
            if load.by_sequences or load.stages_r is None:
                return self.denied("the job names no experts (ep_size is 1)", **figures)
            return self.cannot_tell(
                "computations vary by rank, stage and micro-batch, as uneven experts make them, "
                "but the job names no experts (ep_size is 1)",
                **figures,
            )
        if load.by_experts:
            return _suspicion(case, load, value, figures)
        if load.by_sequences:
            reason = "the computations vary with the sequences of their micro-batch"
            return self.denied(reason, **figures)
        return self.cannot_tell(NOT_TOLD_APART, **figures)


def _figures(load: ExpertLoad) -> dict[str, float]:
    known = {
        "load_spread": load.spread,
        "pearson_r": load.pearson_r,
        "pearson_r_between_stages": load.stages_r,
        "block_variance_ratio": load.conserved,
        "pearson_r_with_tokens": load.tokens_r,
        "pearson_r_with_lengths_squared": load.squares_r,
    }
    return {name: figure for name, figure in known.items() if figure is not None}


_HAVE = verb("have", "had")


def _suspicion_of_hot(case: Case, hot: HotExperts) -> Suspicion:
    """Of experts that stay popular for some steps, and then others do."""
    is_hot = hot.is_hot
    excess = np.where(is_hot, (hot.forward + hot.backward) / 2 - 1, 0.0)
    ratio = 1 + float(excess[is_hot].mean())
    steps = case.steps[is_hot.any(axis=(1, 2))]
    fact = (
        f"loads of the experts {ARE} uneven, and every few steps other ranks {_HAVE} the popular "
        f"ones: these ranks {TAKE} {as_ratio(ratio)} as long as with even loads, in forward and "
        "backward"
    )
    return Suspicion(
        cause=ExpertImbalance.cause,
        score=LIMITS.score_of_hot,
        confidence=LIMITS.confidence * LIMITS.share_by_timings_alone,
        culprits=(),
        fact=fact,
        repair=ShortenedComputations(case, hot.forward, hot.backward),
        badness=case.extended_history.of_window(1 + excess.max(axis=(1, 2))),
        onset=Onset(None, "rotating"),
        evidence={
            "optypes": ["forward-compute", "backward-compute"],
            "steps": steps.tolist(),
            "slowdown_of_hot": ratio,
        },
    )


_DIFFER, _FOLLOW = verb("differ", "differed"), verb("follow", "followed")


def _suspicion(case: Case, load: ExpertLoad, value: float, figures: dict[str, float]) -> Suspicion:
    hottest = case.joined(lambda group: _of_steps(_times_of_group(case, group.replayer)))
    by_tokens = load.tokens_r is not None and load.tokens_r >= LOAD_LIMITS.min_column_r
    is_sure = by_tokens or load.is_together or load.conserved <= LOAD_LIMITS.max_conserved
    workers = _block_workers(case, load)
    culprits = group_culprits(workers, {}, case.parallelism)
    levels, slowdown = expert_levels(case), 1.0
    if workers and levels is not None:
        # How many times as long they compute as those of the other blocks, on average.
        slowdown = float(np.mean([levels.worker[worker] for worker in workers]))
    fact = _fact_of_block(culprits, slowdown) if workers else _fact(load, by_tokens=by_tokens)
    return Suspicion(
        cause=ExpertImbalance.cause,
        score=value,
        confidence=LIMITS.confidence * (1.0 if is_sure else LIMITS.share_by_timings_alone),
        culprits=culprits,
        fact=fact + (", and go with the tokens" if by_tokens else ""),
        repair=lambda group: repaired_parts(group, _repaired(case, group)),
        # Load of the hottest worker over an even one.
        badness=case.extended_history.of_window(hottest.max(axis=1)),
        onset=Onset(None, rotation(hottest.argmax(axis=1)) or "chronic"),
        evidence={
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[usual_steps(case)].tolist(),
            **({"dp_ranks": sorted({dp for dp, _ in workers})} if workers else {}),
            **({"slowdown_against_blocks": slowdown} if workers else {}),
            **figures,
        },
    )


def _fact(load: ExpertLoad, *, by_tokens: bool) -> str:
    return (
        f"loads of the experts {ARE} uneven: computations of the same micro-batch {_DIFFER} by "
        f"{percent(load.spread)} between the ranks of an expert-parallel block, forward and "
        "backward alike" + (f", and {_FOLLOW} the number of tokens" if by_tokens else "")
    )


def _block_workers(case: Case, load: ExpertLoad) -> list[Worker]:
    """Workers of blocks that wait for their fullest expert, where other blocks have even loads."""
    uneven = uneven_workers(case, load)
    if not load.is_together or uneven.all(axis=0).any():
        return []
    return workers_where(uneven)


def _fact_of_block(culprits: tuple[Culprit, ...], slowdown: float) -> str:
    return (
        f"loads of the experts {ARE} uneven in the expert-parallel block of {names_of(culprits)}: "
        f"all its ranks {TAKE} longer for the same micro-batches, {as_ratio(slowdown)} as long as "
        "the other blocks on average, forward and backward alike"
    )


def _times_of_group(case: Case, replayer: Replayer) -> Floats:
    """[dp, pp, items, steps], time over that with even loads."""
    times = expert_times(case, case.group_of(replayer))
    if times is None:
        return np.ones((replayer.dp_size, replayer.pp_size, 1, len(replayer.steps)))
    return np.maximum(times, LIMITS.min_load)


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
