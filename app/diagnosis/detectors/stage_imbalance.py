"""stage-imbalance: one stage has more work than the others in every replica (loss, embedding).

Stages of a replica are compared step by step, so sequence lengths and slow steps cancel out. A slow
worker counts with its peers' time, and a stage is long only if nearly all of its dp ranks are, by
about the same ratio: work is split in the same way in every replica, GPUs are slow one by one. With
one dp rank a long stage may have a slow GPU instead, and the sentence says both.

The cost is the time lost against the job without the fault: the long stages at the pace of those
that are not long, chunk by chunk. Where stages get heavier one after the other, these are the
lightest. That is more than a re-split of the layers wins, which moves work to the other stages and
conserves its sum: all stages at their mean is what the advice predicts (app/advice).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case, evidence
from app.diagnosis.detector import LIMITS as FEW_STEPS
from app.diagnosis.detector import (
    CulpritParts,
    Detector,
    Suspicion,
    as_ratio,
    is_plural,
    is_supported,
    names_of,
    step_by_step,
    too_few_steps_reason,
)
from app.diagnosis.detectors.late_host import with_late_launches
from app.diagnosis.evidence.hot_experts import hot_experts
from app.diagnosis.evidence.slowness import NO_COMPUTATIONS, Slowness, slowness
from app.diagnosis.evidence.stage_operations import slow_stage_operation
from app.diagnosis.features import Computations
from app.diagnosis.finding import MIN_SCORE, confidence, scores
from app.diagnosis.repair import ShortenedComputations, stretch_slice
from app.diagnosis.statistics.robust import Stretches, spread_of_steps, stretches
from app.diagnosis.suspicions import step_times_with
from app.engine.medians import medians_of_known
from app.result.finding import Culprit, RuledOut
from app.result.words import TAKE, TAKES
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Thresholds of stage-imbalance. All were chosen on made jobs, unless a comment says otherwise.

    Ratios are of a stage's time to the others' of its replica.
    """

    # Stages of equally many layers differ by less.
    min_ratio: float = 1.04
    # With one dp rank the spread of GPUs adds to that of stages; healthy jobs reached 1.043.
    min_ratio_alone: float = 1.06
    # Standard errors of a stage's excess over its stretch of steps.
    min_deviations: float = 5.0
    # Score 1 from this ratio, or from so many times the least one where that is more.
    certain_ratio: float = 1.3
    times_least: float = 1.1
    # Standard errors by which a stretch that was chosen for its mean may overstate the ratio.
    certain_deviations: float = 3.0
    # The score of what may be chance: below that from which causes are named.
    chance_score: float = 0.49
    # Of a long stage nearly all dp ranks are slow: all but this share, by at least this share of
    # the stage's excess.
    max_not_slow: float = 0.2
    min_alike: float = 0.6
    # Those ranks are faster than the median by so many deviations of healthy peers, derived: the
    # fifth of a normal distribution lies 0.84 below its middle, and a ratio of two workers varies
    # by sqrt(2) of one; the spread of peers that enters here, at most.
    low_deviations: float = 0.8 * 2**0.5
    max_peer_spread: float = 0.1
    # Stages get heavier one after the other: the share of the variance that a straight line
    # explains, the least rise from the lightest to the heaviest (a share), and the fewest stages,
    # as two are always on a line.
    min_straight: float = 0.95
    min_rise: float = 0.08
    min_stages: int = 3
    # Confidence in a stage whose GPU or host may be slow instead; the first and the last stage have
    # more work often.
    confidence_alone: float = 0.6
    confidence_at_ends: float = 0.85
    # In one that has become slow in its optimizer: its parameters have stayed.
    confidence_to_past: float = 0.95
    # With one dp rank the spread of healthy GPUs is not known: stages that cost a smaller share of
    # GPU time are not named, nor are those with an excess below so many times the least.
    min_cost_of_doubt: float = 0.035
    clear_of_threshold: float = 2.0
    # The median of a stage's dp ranks over that of other stages differs by so many deviations of
    # one rank / sqrt(dp): between the 1.25 of one median and the 1.77 of the ratio of two. A stage
    # is long beyond so many of these.
    of_median: float = 1.6
    min_peer_deviations: float = 3.5


LIMITS = StageLimits()


@dataclass(frozen=True, slots=True)
class _StageLoad:
    """Time of each stage over the others', median over dp ranks.

    Shapes: `ratio`, `forward` and `backward` [steps, pp]; `usual` [usual steps], the positions that
    `slowest`, the slowest stretch of each stage, counts; `is_alike` [pp], whether nearly all dp
    ranks of the stage are slow in that stretch; `took_s`, forward and backward seconds
    [steps, dp, pp] without slow workers; `min_ratio` [pp], from which each stage is long.
    """

    ratio: Floats
    forward: Floats
    backward: Floats
    usual: Ints
    slowest: Stretches
    is_alike: NDArray[np.bool_]
    took_s: tuple[Floats, Floats]
    min_ratio: Floats


@dataclass(frozen=True, slots=True)
class _LongStages:
    """Long stages, the longest first, and those that they are compared with.

    `is_rising`: stages get heavier one after the other, and the others are the lightest.
    """

    long: tuple[int, ...]
    others: tuple[int, ...]
    is_rising: bool = False


class StageImbalance(Detector):
    """Compares each stage with the others, by the median over dp ranks."""

    cause = "stage-imbalance"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if case.parallelism.pp_size == 1:
            return self.cannot_tell("with one stage there is nothing to compare it with")
        computing, once = self._by_computations(case), _by_operation(case)
        if once is None or isinstance(computing, RuledOut):
            return once or computing
        repairs = [suspicion.repair for suspicion in (computing, once) if suspicion.repair]
        computing_s, once_s = (step_s.mean() for step_s in step_times_with(case, repairs))
        return once if once_s < computing_s else computing

    def _by_computations(self, case: Case) -> Suspicion | RuledOut:
        peers = slowness(case)
        if peers is None:
            return self.cannot_tell(NO_COMPUTATIONS)
        load = _load(peers, _as_peers(case, peers))
        of_stages = _scores(load)
        if not of_stages.max() >= MIN_SCORE:
            return self._none(case, load, of_stages)
        has_support = is_supported(load.usual.size, _earlier(case), float(load.min_ratio.min()))
        is_clear = load.slowest.mean >= FEW_STEPS.min_clear_ratio
        by_chance = np.minimum(of_stages, LIMITS.chance_score)
        likely = np.where(is_clear | has_support, of_stages, by_chance)
        if likely.max() < MIN_SCORE:
            return self._too_few(case, load, of_stages)
        return self._suspicion(case, load, likely, has_support)

    def _none(self, case: Case, load: _StageLoad, of_stages: Floats) -> RuledOut:
        ratio = load.ratio[load.usual].mean(axis=0)
        stage = int(np.argmax(ratio))
        takes = f"stage {stage}, takes {as_ratio(float(ratio[stage]))} the mean"
        is_of_some = not load.is_alike[stage] and ratio[stage] >= load.min_ratio[stage]
        return self.denied(
            f"no stage is long on all of its dp ranks: the slowest, {takes}, but not on all"
            if is_of_some
            else f"no stage is long: the slowest, {takes}",
            float(of_stages.max()),
            slowdown_against_stages=float(ratio[stage]),
            needed=float(load.min_ratio[stage]),
            **_m_s(case),
        )

    def _too_few(self, case: Case, load: _StageLoad, of_stages: Floats) -> RuledOut:
        stage = int(np.argmax(of_stages * load.slowest.mean))
        ratio = float(load.slowest.mean[stage])
        reason = too_few_steps_reason(load.usual.size, f"stage {stage}", ratio)
        figures = {"slowdown_against_stages": ratio, "needed": FEW_STEPS.min_clear_ratio}
        return self.cannot_tell(reason, LIMITS.chance_score, **figures, **_m_s(case))

    def _suspicion(
        self, case: Case, load: _StageLoad, of_stages: Floats, has_support: NDArray[np.bool_]
    ) -> Suspicion:
        order = np.argsort(-of_stages * load.slowest.mean, kind="stable").tolist()
        slow_stages = [stage for stage in order if of_stages[stage] >= MIN_SCORE]
        worst = slow_stages[0]
        stages = _long_stages(case, load, slow_stages)
        sure = confidence(float(load.slowest.standard_errors[worst]), LIMITS.min_deviations)
        # An excess of which healthy GPUs show as much needs a cost, and any of a lone dp rank.
        least = LIMITS.clear_of_threshold * (load.min_ratio[worst] - 1)
        is_clear = case.parallelism.dp_size > 1 and load.slowest.mean[worst] - 1 >= least
        at_most = 1.0
        if case.parallelism.dp_size == 1:
            at_most = LIMITS.confidence_alone
        elif _whole_hosts(case, stages) is not None:
            are_ends = set(stages.long) <= {0, case.parallelism.pp_size - 1}
            at_most = LIMITS.confidence_at_ends if are_ends else LIMITS.confidence_alone
        culprits = tuple(Culprit(stage=stage) for stage in stages.long)

        def only(chosen: Sequence[int]) -> Suspicion:
            is_chosen = np.isin(np.arange(of_stages.size), [stages.long[at] for at in chosen])
            of_chosen = np.where(is_chosen, of_stages, 0.0)
            return self._suspicion(case, load, of_chosen, has_support)

        def repair_of(chosen: Sequence[int]) -> ShortenedComputations:
            long = tuple(stages.long[at] for at in chosen)
            return _repair(case, load, replace(stages, long=long))

        long = Suspicion(
            self.cause,
            float(of_stages.max()),
            min(sure, at_most),
            culprits,
            _fact(case, load, stages, culprits),
            repair=_repair(case, load, stages),
            badness=_badness(case, load, list(stages.long)),
            min_cost=0.0 if is_clear else LIMITS.min_cost_of_doubt,
            evidence=_evidence(case, load, stages),
            max_confidence=1.0 if has_support[worst] else FEW_STEPS.max_confidence,
            # Stages that get heavier one after the other are one.
            parts=None if stages.is_rising else CulpritParts(len(culprits), repair_of, only),
        )
        dp_ranks = range(case.parallelism.dp_size)
        workers = [(dp_rank, stage) for stage in stages.long for dp_rank in dp_ranks]
        return with_late_launches(case, long, workers)


def _by_operation(case: Case) -> Suspicion | None:
    """The stage whose optimizer takes too long on all dp ranks; a lone one is a worker."""
    slow = slow_stage_operation(case) if case.parallelism.dp_size > 1 else None
    if slow is None:
        return None
    culprits = (Culprit(stage=slow.stage),)
    takes = f"{names_of(culprits, case.parallelism.pp_size)} {TAKES} {as_ratio(slow.ratio)} as long"
    fact = (
        f"{takes} as before in the {slow.optype}, on all of its dp ranks"
        if slow.is_to_past
        else f"{takes} as the other stages in the {slow.optype} for what it computes, on all of "
        f"its dp ranks: either its share of the parameters is far larger, or it is slow there"
    )
    return Suspicion(
        StageImbalance.cause,
        slow.score,
        LIMITS.confidence_to_past if slow.is_to_past else LIMITS.confidence_at_ends,
        culprits,
        fact,
        repair=slow.repair(case),
        badness=slow.badness,
        min_cost=LIMITS.min_cost_of_doubt if slow.may_be_embeddings else 0.0,
        is_at_step_end=True,
        evidence=slow.evidence(case),
    )


def _fact(case: Case, load: _StageLoad, stages: _LongStages, culprits: tuple[Culprit, ...]) -> str:
    often = step_by_step(_shown_steps(load, stages).size, case.steps.size)
    ratio, take = float(load.slowest.mean[stages.long[0]]), TAKE if is_plural(culprits) else TAKES
    subject = f"{names_of(culprits, case.parallelism.pp_size)} {take}"
    fact = f"{subject} {as_ratio(ratio)} as long as the others {often}"
    if stages.is_rising:
        lightest = f"stage {stages.others[0]}"
        fact = (
            f"stages get heavier from {lightest} to stage {stages.long[0]}, which {TAKES} "
            f"{as_ratio(_rise(load, stages))} as long as {lightest} {often}"
        )
    is_one = len(culprits) == 1
    its, gpu, is_, share = (
        ("its", "GPU", "is", "share") if is_one else ("their", "GPUs", "are", "shares")
    )
    either = f"{fact}: either {its} {share} of the model {is_} larger"
    if case.parallelism.dp_size == 1:
        return f"{either} or {its} {gpu} slower, which look alike with one dp rank"
    hosts = None if stages.is_rising else _whole_hosts(case, stages)
    if hosts is None:
        return fact
    of_hosts = names_of(tuple(Culprit(host=host) for host in hosts))
    hold = "holds all of it" if is_one else "hold all of them"
    return f"{either}, or {of_hosts}, which {hold}, {is_} slower"


def _whole_hosts(case: Case, stages: _LongStages) -> list[str] | None:
    """Hosts that have one of these stages each, all of it and nothing else; None if any has not."""
    places = case.replay.window.hosts.items()
    whole: list[str] = []
    for stage in stages.long:
        of_stage = {host for (_, at), host in places if at == stage}
        if len(of_stage) != 1 or of_stage & {host for (_, at), host in places if at != stage}:
            return None
        whole += of_stage
    return whole


def _long_stages(case: Case, load: _StageLoad, slow_stages: list[int]) -> _LongStages:
    """The stages that are long, and those to compare them with."""
    rising = _rising(load)
    if rising is not None and slow_stages[0] == rising.long[0]:
        return rising
    stages = range(case.parallelism.pp_size)
    # Where all are long in turn, the one that is longer by the least.
    others = tuple(stage for stage in stages if stage not in slow_stages) or (slow_stages[-1],)
    long = tuple(stage for stage in slow_stages if stage not in others)
    return _LongStages(long, others)


def _rising(load: _StageLoad) -> _LongStages | None:
    """All stages above the lightest, where they get heavier in one direction of the pipeline."""
    level = _levels(load)
    if level.size < LIMITS.min_stages or not level.min() > 0:
        return None
    # Noise may hide a stage's excess on some dp rank, but hardly the rise over all stages.
    if not load.is_alike.all() and not all(map(_is_straight, np.median(_shares(load), axis=0))):
        return None
    rise = level / level.min()
    if not _is_straight(level) or rise.max() < 1 + LIMITS.min_rise:
        return None
    order = np.argsort(-level, kind="stable").tolist()
    # Half of what one stage is heavier than the one before.
    least = 1 + (rise.max() - 1) / (2 * (level.size - 1))
    long = tuple(stage for stage in order if rise[stage] >= least)
    others = tuple(stage for stage in reversed(order) if rise[stage] < least)
    return _LongStages(long, others, is_rising=True)


def _is_straight(level: Floats) -> bool:
    """Whether the levels of the stages get higher, or lower, one after the other."""
    if not level.std() > 0:
        return False
    return bool(np.corrcoef(np.arange(level.size), level)[0, 1] ** 2 >= LIMITS.min_straight)


def _levels(load: _StageLoad) -> Floats:
    """[pp], the stages' time as shares of their replica's, median over dp ranks and usual steps."""
    shares = _shares(load)
    return medians_of_known(shares.reshape(-1, shares.shape[2]).T)


def _shares(load: _StageLoad) -> Floats:
    """[usual steps, dp, pp], the stages' time as shares of their replica's."""
    took_s = np.add(*load.took_s)[load.usual]
    total_s = took_s.sum(axis=2, keepdims=True)
    shares = np.divide(took_s, total_s, out=np.zeros(took_s.shape), where=total_s > 0)
    return np.asarray(shares)


def _rise(load: _StageLoad, stages: _LongStages) -> float:
    """How much longer the longest stage is than the lightest."""
    level = _levels(load)
    return float(level[stages.long[0]] / level[stages.others[0]])


def _as_peers(case: Case, peers: Slowness) -> tuple[Floats, Floats]:
    """Seconds [steps, dp, pp] of forward and backward, without slow workers and hot experts."""
    hot = hot_experts(case)
    if hot is None or case.forward is None or case.backward is None:
        return peers.as_peers
    (forward_s, backward_s), loads = peers.as_peers, (hot.forward, hot.backward)
    return (
        np.where(loads[0] == 1.0, forward_s, case.forward.mean_s / loads[0]),
        np.where(loads[1] == 1.0, backward_s, case.backward.mean_s / loads[1]),
    )


def _load(peers: Slowness, took_s: tuple[Floats, Floats]) -> _StageLoad:
    forward_s, backward_s = took_s
    by_dp_rank = [
        against_others(took_s) for took_s in (forward_s + backward_s, forward_s, backward_s)
    ]
    ratio, forward, backward = (
        medians_of_known(figure.transpose(0, 2, 1)) for figure in by_dp_rank
    )
    of_usual = ratio[peers.usual]
    spread = spread_of_steps(of_usual)
    min_ratio = np.full(ratio.shape[1], LIMITS.min_ratio_alone)
    if peers.num_healthy is not None:
        of_stage = LIMITS.of_median * peers.peer_spread / np.sqrt(peers.num_healthy)
        min_ratio = np.maximum(LIMITS.min_ratio, 1 + LIMITS.min_peer_deviations * of_stage)
    slowest = stretches(of_usual, spread, float(min_ratio.min()) - 1)
    is_alike = _is_alike(by_dp_rank[0][peers.usual], slowest, peers.peer_spread)
    return _StageLoad(ratio, forward, backward, peers.usual, slowest, is_alike, took_s, min_ratio)


def _is_alike(by_dp_rank: Floats, slowest: Stretches, peer_spread: float) -> NDArray[np.bool_]:
    """[pp], whether nearly all dp ranks of a stage are slow in its stretch.

    Args:
        by_dp_rank: [usual steps, dp, pp], each stage over the others of its replica.
        slowest: the slowest stretch of each stage.
        peer_spread: standard deviation of healthy peers.
    """
    dp_size = by_dp_rank.shape[1]
    at = int(LIMITS.max_not_slow * (dp_size - 1))
    low = np.partition(by_dp_rank, at, axis=1)[:, at]
    usual_low = 1 - LIMITS.low_deviations * min(peer_spread, LIMITS.max_peer_spread)
    is_alike = np.ones(low.shape[1], np.bool_)
    for stage in range(low.shape[1]):
        of_stage = low[slowest.first[stage] : slowest.end[stage], stage]
        if of_stage.size and dp_size > 1:
            excess = of_stage.mean() / usual_low - 1
            is_alike[stage] = excess >= LIMITS.min_alike * (slowest.mean[stage] - 1)
    return is_alike


def against_others(took_s: Floats) -> Floats:
    """[steps, dp, pp], each stage over the lower median of its replica's other stages."""
    stages = range(took_s.shape[2])
    others = [tuple(other for other in stages if other != stage) for stage in stages]
    return np.stack([_against(took_s, stage, others[stage]) for stage in stages], axis=2)


def _scores(load: _StageLoad) -> Floats:
    """[pp], 0..1; a ratio that may be chance stays below 0.5."""
    certain = np.maximum(LIMITS.certain_ratio, LIMITS.times_least * load.min_ratio)
    by_ratio = scores(load.slowest.mean, load.min_ratio, certain)
    shown = load.slowest.standard_errors / LIMITS.min_deviations
    is_lone = (load.slowest.end - load.slowest.first < 2) & (load.usual.size > 1)
    shown = np.where(is_lone | ~load.is_alike, 0.0, np.minimum(shown, _slowness_shown(load)))
    return np.where(shown >= 1, by_ratio, np.minimum(by_ratio, LIMITS.chance_score * shown))


def _slowness_shown(load: _StageLoad) -> Floats:
    """[pp], 0..1, 1 where a stage is slow over the whole window, or surely within its stretch.

    The stretch is chosen for its mean, so that overstates the ratio by some standard errors.
    """
    slowest = load.slowest
    error = (slowest.mean - 1) / np.maximum(slowest.standard_errors, 1e-9)
    least = slowest.mean - LIMITS.certain_deviations * error
    ratio = np.maximum(load.ratio[load.usual].mean(axis=0), least)
    return np.asarray(np.clip((ratio - 1) / (load.min_ratio - 1), 0.0, 1.0))


def _repair(case: Case, load: _StageLoad, stages: _LongStages) -> ShortenedComputations:
    """The long stages' computations at the others' speed, chunk by chunk.

    With virtual stages the last chunk alone has the loss layer: its share of the stage's factor is
    so much larger as its share of the stage's time is than on the other stages.
    """
    num_steps = len(case.steps)
    factors = []
    for took_s in load.took_s:
        factor = np.ones(took_s.shape)
        for stage in stages.long:
            first, end = int(load.slowest.first[stage]), int(load.slowest.end[stage])
            if stages.is_rising or first == end:
                first, end = 0, load.usual.size
            chosen = load.usual[first:end]
            ratio = float(medians_of_known(_against(took_s[chosen], stage, stages.others)).mean())
            if ratio > 0:
                factor[stretch_slice(load.usual, first, end, num_steps), :, stage] = ratio
        factors.append(factor)
    forward, backward = factors
    shares = partial(chunk_shares, others=stages.others)
    return ShortenedComputations(case, forward, backward, shares)


def _against(took_s: Floats, stage: int, others: tuple[int, ...]) -> Floats:
    """[steps, dp], a stage's time over the lower median of others' in the same replica and step."""
    middle = (len(others) - 1) // 2
    others_s = np.partition(took_s[:, :, list(others)], middle, axis=2)[:, :, middle]
    took_s = took_s[:, :, stage]
    return np.divide(took_s, others_s, out=np.ones(took_s.shape), where=others_s > 0)


def chunk_shares(side: Computations, stage: int, others: tuple[int, ...]) -> Floats:
    """[items], the share of an item's chunk in its stage's time over the same on other stages.

    1.0 without virtual stages. Shares within one worker and step, so slow workers cancel out.
    """
    chunks = np.unique(side.chunk)
    if chunks.size < 2:
        return np.ones(side.chunk.size)
    own = _shares_of_time(side, stage, chunks)
    peers = np.median([_shares_of_time(side, other, chunks) for other in others], axis=0)
    shares = np.divide(own, peers, out=np.ones(chunks.size), where=(peers > 0) & (own > 0))
    return np.asarray(shares[np.searchsorted(chunks, side.chunk)])


def _shares_of_time(side: Computations, stage: int, chunks: Ints) -> Floats:
    """[chunks], mean time of a chunk's items over the mean of all chunks, median over lanes."""
    own_s, rows = side.replayer.durations.recorded_s, side.rows[stage]
    by_chunk_s = []
    for chunk in chunks:
        of_chunk = rows[(side.chunk == chunk) & (rows[:, 0] >= 0)]
        took_s = own_s[of_chunk[of_chunk >= 0]].sum(axis=0) / max(1, len(of_chunk))
        by_chunk_s.append(took_s)
    all_s = np.mean(by_chunk_s, axis=0)
    shares = np.divide(by_chunk_s, all_s, out=np.ones((chunks.size, all_s.size)), where=all_s > 0)
    return np.asarray(np.median(shares, axis=1))


@evidence
def _earlier(case: Case) -> Floats:
    """[earlier steps, pp], ratios of the stages before the window; NaN = unknown."""
    history = case.extended_history
    before_s = history.signals["compute_s"][: history.num_before]
    return np.asarray(np.median(against_others(before_s), axis=1))


def _badness(case: Case, load: _StageLoad, slow_stages: list[int]) -> Floats:
    """[steps of the extended history], the highest ratio of these stages."""
    ratio = np.concatenate([_earlier(case), load.ratio])
    return np.asarray(ratio[:, slow_stages].max(axis=1))


def _m_s(case: Case) -> dict[str, float]:
    """Shares won back by fixing each stage, where anything is lost."""
    return {
        f"share_won_back_stage_{stage}": share
        for stage, share in enumerate(case.report.stage_share)
        if share is not None
    }


def _shown_steps(load: _StageLoad, stages: _LongStages) -> Ints:
    """Positions of the steps in which the longest stage is long."""
    stage = stages.long[0]
    return load.usual[load.slowest.first[stage] : load.slowest.end[stage]]


def _evidence(case: Case, load: _StageLoad, stages: _LongStages) -> dict[str, Any]:
    slowest, stage = load.slowest, stages.long[0]
    chosen = _shown_steps(load, stages)
    alone = case.parallelism.dp_size == 1
    hosts = None if alone or stages.is_rising else _whole_hosts(case, stages)
    return {
        **({"workers": [[0, stage] for stage in stages.long]} if alone else {}),
        **({} if hosts is None else {"hosts": hosts}),
        "stages": list(stages.long),
        "optypes": ["forward-compute", "backward-compute"],
        "steps": case.steps[chosen].tolist(),
        "slowdown_against_stages": _rise(load, stages)
        if stages.is_rising
        else float(slowest.mean[stage]),
        "forward_slowdown": float(load.forward[chosen, stage].mean()),
        "backward_slowdown": float(load.backward[chosen, stage].mean()),
        "standard_errors": float(slowest.standard_errors[stage]),
        "share_won_back": case.report.stage_share[stage],
        "m_s": case.report.stage_share[-1],
    }
