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
from app.diagnosis.detector import (
    MAX_CONFIDENCE,
    MIN_CLEAR_RATIO,
    CulpritParts,
    Detector,
    Suspicion,
    as_ratio,
    finding_sentence,
    is_plural,
    is_supported,
    names_of,
    step_by_step,
    too_few_steps_reason,
)
from app.diagnosis.evidence.slowness import NO_COMPUTATIONS, Slowness, slowness
from app.diagnosis.features import Computations
from app.diagnosis.finding import MIN_SCORE, confidence, scores
from app.diagnosis.repair import ShortenedComputations, stretch_slice
from app.diagnosis.statistics.robust import Stretches, spread_of_steps, stretches
from app.engine.medians import medians_of_known
from app.result.finding import Culprit, RuledOut
from app.result.sentence import TAKE, TAKES
from app.trace.window import Floats, Ints

# Stages of equally many layers differ by less.
MIN_RATIO = 1.04
# With one dp rank the spread of GPUs adds to that of stages; healthy jobs reached 1.043.
MIN_RATIO_ALONE = 1.06
MIN_DEVIATIONS = 5.0
# Score 1 from this ratio.
_CERTAIN_RATIO = 1.3
# Standard errors.
_CERTAIN_DEVIATIONS = 3.0
# The score of what may be chance.
_CHANCE_SCORE = 0.49
# Of a long stage nearly all dp ranks are slow: all but this share, by at least this share of the
# stage's excess. Those ranks are faster than the median by so many deviations of healthy peers.
_MAX_NOT_SLOW = 0.2
_MIN_ALIKE = 0.6
_LOW_DEVIATIONS = 0.8 * 2**0.5
# Stages get heavier one after the other: the share of the variance that a straight line explains,
# and the least rise from the lightest to the heaviest.
_MIN_STRAIGHT = 0.95
_MIN_RISE = 0.08
_MIN_STAGES = 3
# A stage whose GPU or host may be slow instead; the first and the last stage have more work often.
_CONFIDENCE_ALONE = 0.6
_CONFIDENCE_AT_ENDS = 0.85
# With one dp rank the spread of healthy GPUs is not known: cheaper ones are not named, nor are
# stages with an excess below so many times the least.
_MIN_COST_OF_DOUBT = 0.035
_CLEAR_OF_THRESHOLD = 2.0
# The median of a stage's dp ranks over that of other stages differs by so many deviations of one
# rank / sqrt(dp), and a stage is long beyond so many of these.
_OF_MEDIAN = 1.6
_MIN_PEER_DEVIATIONS = 3.5


@dataclass(frozen=True, slots=True)
class _StageLoad:
    """Time of each stage over the others', median over dp ranks.

    Shapes: `ratio`, `forward` and `backward` [steps, pp]; `usual` [usual steps], the positions that
    `found`, the slowest stretch of each stage, counts; `is_alike` [pp], whether nearly all dp ranks
    of the stage are slow in that stretch; `took_s`, forward and backward seconds [steps, dp, pp]
    without slow workers; `min_ratio` [pp], from which each stage is long.
    """

    ratio: Floats
    forward: Floats
    backward: Floats
    usual: Ints
    found: Stretches
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
        peers = slowness(case)
        if peers is None:
            return self.cannot_tell(NO_COMPUTATIONS)
        load = _load(peers)
        of_stages = _scores(load)
        if not of_stages.max() >= MIN_SCORE:
            return self._none(case, load, of_stages)
        has_support = is_supported(load.usual.size, _earlier(case), float(load.min_ratio.min()))
        is_clear = load.found.mean >= MIN_CLEAR_RATIO
        likely = np.where(is_clear | has_support, of_stages, np.minimum(of_stages, _CHANCE_SCORE))
        if likely.max() < MIN_SCORE:
            return self._too_few(case, load, of_stages)
        return self._suspicion(case, load, likely, has_support)

    def _none(self, case: Case, load: _StageLoad, of_stages: Floats) -> RuledOut:
        ratio = load.ratio[load.usual].mean(axis=0)
        stage = int(np.argmax(ratio))
        takes = f"stage {stage}, takes {as_ratio(float(ratio[stage]))} the mean"
        reason = f"no stage is long: the slowest, {takes}"
        if not load.is_alike[stage] and ratio[stage] >= load.min_ratio[stage]:
            reason = (
                f"no stage is long on all of its dp ranks: the slowest, {takes}, but not on all"
            )
        return self.denied(
            reason,
            float(of_stages.max()),
            slowdown_against_stages=float(ratio[stage]),
            needed=float(load.min_ratio[stage]),
            **_m_s(case),
        )

    def _too_few(self, case: Case, load: _StageLoad, of_stages: Floats) -> RuledOut:
        stage = int(np.argmax(of_stages * load.found.mean))
        ratio = float(load.found.mean[stage])
        why = too_few_steps_reason(load.usual.size, f"stage {stage}", as_ratio(ratio))
        figures = {"slowdown_against_stages": ratio, "needed": MIN_CLEAR_RATIO}
        return self.cannot_tell(why, _CHANCE_SCORE, **figures, **_m_s(case))

    def _suspicion(
        self, case: Case, load: _StageLoad, of_stages: Floats, has_support: NDArray[np.bool_]
    ) -> Suspicion:
        order = np.argsort(-of_stages * load.found.mean, kind="stable").tolist()
        slow_stages = [stage for stage in order if of_stages[stage] >= MIN_SCORE]
        worst = slow_stages[0]
        stages = _long_stages(case, load, slow_stages)
        sure = confidence(float(load.found.standard_errors[worst]), MIN_DEVIATIONS)
        at_most = 1.0
        if case.parallelism.dp_size == 1:
            at_most = _CONFIDENCE_ALONE
        elif _whole_hosts(case, stages) is not None:
            ends = {0, case.parallelism.pp_size - 1}
            at_most = _CONFIDENCE_AT_ENDS if set(stages.long) <= ends else _CONFIDENCE_ALONE
        culprits = tuple(Culprit(stage=stage) for stage in stages.long)

        def only(chosen: Sequence[int]) -> Suspicion:
            is_chosen = np.isin(np.arange(of_stages.size), [stages.long[at] for at in chosen])
            of_chosen = np.where(is_chosen, of_stages, 0.0)
            return self._suspicion(case, load, of_chosen, has_support)

        def repair_of(chosen: Sequence[int]) -> ShortenedComputations:
            long = tuple(stages.long[at] for at in chosen)
            return _repair(case, load, replace(stages, long=long))

        return Suspicion(
            self.cause,
            float(of_stages.max()),
            min(sure, at_most),
            culprits,
            partial(finding_sentence, _fact(case, load, stages, culprits)),
            repair=_repair(case, load, stages),
            badness=_badness(case, load, list(stages.long)),
            min_cost=_min_cost(case, load, worst),
            evidence=_evidence(case, load, stages),
            max_confidence=1.0 if has_support[worst] else MAX_CONFIDENCE,
            # Stages that get heavier one after the other are one.
            parts=None if stages.is_rising else CulpritParts(len(culprits), repair_of, only),
        )


def _fact(case: Case, load: _StageLoad, stages: _LongStages, culprits: tuple[Culprit, ...]) -> str:
    often = step_by_step(_shown_steps(load, stages).size, case.steps.size)
    ratio, num_stages = float(load.found.mean[stages.long[0]]), case.parallelism.pp_size
    verb = TAKE if is_plural(culprits) else TAKES
    if stages.is_rising:
        most = _rise(load, stages)
        lightest, heaviest = (f"stage {each}" for each in (stages.others[0], stages.long[0]))
        fact = (
            f"stages get heavier from {lightest} to {heaviest}, which {TAKES} {as_ratio(most)} as "
            f"long as {lightest} {often}"
        )
    else:
        fact = (
            f"{names_of(culprits, num_stages)} {verb} {as_ratio(ratio)} as long as the others "
            f"{often}"
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


def _min_cost(case: Case, load: _StageLoad, stage: int) -> float:
    """The least cost of a stage that healthy GPUs may make seem long."""
    is_clear = load.found.mean[stage] - 1 >= _CLEAR_OF_THRESHOLD * (load.min_ratio[stage] - 1)
    return _MIN_COST_OF_DOUBT if case.parallelism.dp_size == 1 or not is_clear else 0.0


def _whole_hosts(case: Case, stages: _LongStages) -> list[str] | None:
    """Hosts that have one of these stages each, all of it and nothing else; None if any has not."""
    hosts = case.replay.window.hosts
    found = []
    for stage in stages.long:
        mine = {host for (_, at), host in hosts.items() if at == stage}
        elsewhere = {host for (_, at), host in hosts.items() if at != stage}
        if len(mine) != 1 or mine & elsewhere:
            return None
        found += sorted(mine)
    return found


def _long_stages(case: Case, load: _StageLoad, slow_stages: list[int]) -> _LongStages:
    """The stages that are long, and those to compare them with."""
    num_stages = case.parallelism.pp_size
    rising = _rising(load)
    if rising is not None and slow_stages[0] == rising.long[0]:
        return rising
    others = tuple(stage for stage in range(num_stages) if stage not in slow_stages)
    return _LongStages(tuple(slow_stages), others)


def _rising(load: _StageLoad) -> _LongStages | None:
    """All stages above the lightest, where they get heavier in one direction of the pipeline."""
    level = _levels(load)
    if level.size < _MIN_STAGES or not level.min() > 0:
        return None
    # Noise may hide a stage's excess on some dp rank, but hardly the rise over all stages.
    if not load.is_alike.all() and not _rises_everywhere(load):
        return None
    place = np.arange(level.size)
    is_straight = np.corrcoef(place, level)[0, 1] ** 2 >= _MIN_STRAIGHT if level.std() else False
    rise = level / level.min()
    if not is_straight or rise.max() < 1 + _MIN_RISE:
        return None
    order = np.argsort(-level, kind="stable").tolist()
    # Half of what one stage is heavier than the one before.
    least = 1 + (rise.max() - 1) / (2 * (level.size - 1))
    long = tuple(stage for stage in order if rise[stage] >= least)
    others = tuple(stage for stage in reversed(order) if rise[stage] < least)
    return _LongStages(long, others, is_rising=True)


def _rises_everywhere(load: _StageLoad) -> bool:
    """Whether stages get heavier one after the other on each dp rank alone."""
    levels = np.median(_shares(load), axis=0)
    if not (levels.std(axis=1) > 0).all():
        return False
    place = np.arange(levels.shape[1])
    return all(np.corrcoef(place, level)[0, 1] ** 2 >= _MIN_STRAIGHT for level in levels)


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


def _load(peers: Slowness) -> _StageLoad:
    forward_s, backward_s = peers.as_peers
    by_dp_rank = [against_others(each) for each in (forward_s + backward_s, forward_s, backward_s)]
    ratio, forward, backward = (
        medians_of_known(figure.transpose(0, 2, 1)) for figure in by_dp_rank
    )
    of_usual = ratio[peers.usual]
    spread = spread_of_steps(of_usual)
    min_ratio = np.full(ratio.shape[1], MIN_RATIO_ALONE)
    if peers.num_healthy is not None:
        of_stage = _OF_MEDIAN * peers.peer_spread / np.sqrt(peers.num_healthy)
        min_ratio = np.maximum(MIN_RATIO, 1 + _MIN_PEER_DEVIATIONS * of_stage)
    found = stretches(of_usual, spread, float(min_ratio.min()) - 1)
    is_alike = _is_alike(by_dp_rank[0][peers.usual], found, peers.peer_spread)
    return _StageLoad(
        ratio,
        forward,
        backward,
        peers.usual,
        found,
        is_alike,
        peers.as_peers,
        min_ratio,
    )


def _is_alike(by_dp_rank: Floats, found: Stretches, peer_spread: float) -> NDArray[np.bool_]:
    """[pp], whether nearly all dp ranks of a stage are slow in its stretch.

    Args:
        by_dp_rank: [usual steps, dp, pp], each stage over the others of its replica.
        found: the slowest stretch of each stage.
        peer_spread: standard deviation of healthy peers.
    """
    dp_size = by_dp_rank.shape[1]
    at = int(_MAX_NOT_SLOW * (dp_size - 1))
    low = np.partition(by_dp_rank, at, axis=1)[:, at]
    is_alike = np.ones(low.shape[1], np.bool_)
    for stage in range(low.shape[1]):
        mine = low[found.first[stage] : found.end[stage], stage]
        if mine.size and dp_size > 1:
            excess = mine.mean() / (1 - _LOW_DEVIATIONS * min(peer_spread, 0.1)) - 1
            is_alike[stage] = excess >= _MIN_ALIKE * (found.mean[stage] - 1)
    return is_alike


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
    certain = np.maximum(_CERTAIN_RATIO, 1.1 * load.min_ratio)
    by_ratio = scores(load.found.mean, load.min_ratio, certain)
    shown = load.found.standard_errors / MIN_DEVIATIONS
    is_lone = (load.found.end - load.found.first < 2) & (load.usual.size > 1)
    shown = np.where(is_lone | ~load.is_alike, 0.0, np.minimum(shown, _slowness_shown(load)))
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
            first, end = int(load.found.first[stage]), int(load.found.end[stage])
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
    found = np.ones(side.chunk.size)
    if chunks.size < 2:
        return found
    mine = _shares_of_time(side, stage, chunks)
    theirs = np.median([_shares_of_time(side, other, chunks) for other in others], axis=0)
    shape = np.divide(mine, theirs, out=np.ones(chunks.size), where=(theirs > 0) & (mine > 0))
    return np.asarray(shape[np.searchsorted(chunks, side.chunk)])


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
    return load.usual[load.found.first[stage] : load.found.end[stage]]


def _evidence(case: Case, load: _StageLoad, stages: _LongStages) -> dict[str, Any]:
    found, stage = load.found, stages.long[0]
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
        else float(found.mean[stage]),
        "forward_slowdown": float(load.forward[chosen, stage].mean()),
        "backward_slowdown": float(load.backward[chosen, stage].mean()),
        "standard_errors": float(found.standard_errors[stage]),
        "share_won_back": case.report.stage_share[stage],
        "m_s": case.report.stage_share[-1],
    }
