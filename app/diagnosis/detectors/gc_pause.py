"""gc-pause: Python collects garbage in the middle of forward computations.

The collector stops only Python, which drives the forward; backward runs without it. So a pause is a
single long forward, while noise makes forward and backward long alike. A forward that is long on
nearly all workers at once, its backward as usual, is a planned collection.
"""

from dataclasses import dataclass, replace
from math import comb, log

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    is_plural,
    names_of,
    steps_of,
    workers_evidence,
)
from app.diagnosis.evidence.idle_time import idle_time
from app.diagnosis.evidence.interruptions import LIMITS as INTERRUPTION_LIMITS
from app.diagnosis.evidence.interruptions import (
    InterruptionKind,
    Interruptions,
    among,
    interruptions_of,
    joined,
    longer_at_once,
    stalls,
    workers_where,
)
from app.diagnosis.evidence.outliers import outliers
from app.diagnosis.evidence.step_gaps import outside_s, total_s
from app.diagnosis.evidence.stops import LIMITS as STOP_LIMITS
from app.diagnosis.evidence.stops import long_stops, may_be_collection, usual_step_s
from app.diagnosis.statistics.persistence import (
    is_of_few,
    onset_of_losses,
    period,
    rotation,
)
from app.engine.medians import medians_of_known
from app.engine.metrics import binomial_tail
from app.result.finding import Culprit, RuledOut
from app.result.words import STOP, STOPS


@dataclass(frozen=True, slots=True)
class PauseLimits:
    """Thresholds of gc-pause. All were chosen on made jobs, unless a comment says otherwise."""

    # Times the median computation: healthy noise of made jobs is capped at 3 times, and medians of
    # few values are inexact.
    beyond_tails: float = 3.6
    # Seconds from which pauses within that noise are searched; collections of a whole heap take
    # 100s of ms (Lin et al., OSDI 2025).
    pause_s: float = 0.1
    # One long forward may be anything.
    min_pauses: int = 2
    # Probability of so many long forwards if both directions were alike: beyond the noise, within.
    max_chance: float = 0.26
    max_chance_within_tails: float = 0.02
    # Once pauses are certain, shorter ones count too while long forwards are so many times, and so
    # many more, than long backwards. The ratios to the median that are tried:
    forward_to_backward: float = 4.0
    min_more_forwards: int = 2
    ratios: tuple[float, ...] = (3.6, 3.0, 2.5, 2.0, 1.5, 1.25)
    # Share of a worker's stops in backward or before launches from which garbage is not the cause.
    max_other_stops: float = 0.2
    # A stop so many times longer than all others is no collection.
    min_times_others: float = 3.0
    # Pauses are planned if this share is in steps where nearly all workers pause;
    min_planned_share: float = 0.8
    # a forward long on all workers in a larger share of the steps is how the job computes.
    max_planned_steps: float = 0.5
    # Taken as the chance of planned pauses.
    planned_chance: float = 0.1
    # A pause in one step of the window is planned if so many steps before it were longer by this
    # share of its excess, at equal distances of so many steps at least.
    min_times_before: int = 2
    min_relative_excess: float = 0.5
    min_steps_apart: int = 2
    # Probability that chance gives all pauses to so few workers, and their largest share.
    max_chance_of_few: float = 0.17
    max_share_of_few: float = 0.34
    # Workers with fewer pauses than this share of the most affected one are left out.
    max_stray_share: float = 0.1
    # Clients also annotate collections of young objects, a millisecond on every worker in every
    # step: those shorter than this share of the longest are repaired, and show that a worker
    # collects at all, but say nothing of when.
    min_share_of_longest: float = 0.1
    # Where a client annotates pauses, or records `gc` operations.
    recorded_score: float = 0.97
    # The confidence over the score.
    confidence_of_score: float = 0.97
    # Pauses are inside computations, between steps while all ranks are idle, outside of all steps,
    # or recorded, if this share of them is: the majority.
    majority: float = 0.5


LIMITS = PauseLimits()
# Of computations without any time.
_LEAST_USUAL_S = 1e-9
# Recorded by the client.
_NOTED = (InterruptionKind.LATE_BY_GC, InterruptionKind.LONG_BY_GC)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Every paused or late operation: recorded as a collection, or a long forward.

    `chance` is the probability of so many long forwards above `certain_ratio` if forward and
    backward had equal tails. `always`: some forward is long on all workers in most steps, and was
    left out.
    """

    rows: Interruptions
    certain_ratio: float
    chance: float
    always: bool

    @property
    def is_recorded(self) -> NDArray[np.bool_]:
        """[rows], annotated by the client or of a `gc` operation."""
        return np.asarray(self.rows.kind != InterruptionKind.LONG)

    @property
    def certain(self) -> Interruptions:
        """Without the shorter ones, some of which may be noise."""
        return self.rows.where(self.is_recorded | (self.rows.ratio >= self.certain_ratio))

    @property
    def full(self) -> Interruptions:
        """The certain ones without collections of young objects."""
        rows = self.certain
        is_noted = np.isin(rows.kind, _NOTED)
        longest_s = rows.excess_s.max(initial=0.0, where=is_noted)
        return rows.where(~is_noted | (rows.excess_s >= LIMITS.min_share_of_longest * longest_s))


class GcPause(Detector):
    """Single long forwards of changing workers, or of all at once where planned."""

    cause = "gc-pause"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        pauses = gc_pauses(case)
        if pauses.rows.size:
            return _suspicion(case, pauses)
        if pauses.always:
            return self.cannot_tell(
                "the same forward computation is longer on all workers in most steps: that may be "
                "what it computes, and no client reports a pause"
            )
        return self.denied(
            "no forward computation is long while its backward is as usual, as a pause makes it"
        )


def _suspicion(case: Case, pauses: Pauses) -> Suspicion:
    rows, full, is_recorded = pauses.rows, pauses.full, pauses.is_recorded
    recorded_s = rows.excess_s.sum(where=is_recorded)
    between_s = idle_time(case).reported_s["gc-pause"]
    outside = np.minimum(between_s, outside_s(case)).sum()
    # What no step has is in no replay either.
    is_outside = outside >= LIMITS.majority * between_s.sum() > 0
    every_steps = _period(case, full)
    culprits = () if every_steps is not None else _culprits(case, pauses.certain)
    is_hit = full.in_steps(case)
    by_worker_s = full.seconds(case).reshape(case.steps.size, -1)
    lost_s = by_worker_s.sum(axis=1)
    onset = onset_of_losses(case.steps, lost_s)
    worst = np.where(is_hit, by_worker_s.argmax(axis=1), -1)
    in_turn = rotation(worst, by_worker_s.max(axis=1)) is not None and not is_of_few(lost_s)
    wanders = every_steps is None and not culprits and (in_turn or onset.persistence == "chronic")
    score = LIMITS.recorded_score if is_recorded.any() else 1 - pauses.chance
    in_op = rows.kind == InterruptionKind.GC_OP
    return Suspicion(
        cause=GcPause.cause,
        score=score,
        confidence=LIMITS.confidence_of_score * score,
        culprits=culprits,
        fact=_fact(case, pauses, every_steps, culprits),
        repair=rows.repair(case) if rows.is_inside.any() and not is_outside else None,
        delays=rows.delays(case) if not (rows.is_inside.all() or is_outside) else None,
        cost=float(between_s.sum() / total_s(case)) if is_outside else None,
        is_cost_recorded=is_outside,
        onset=replace(onset, persistence="rotating") if wanders else onset,
        evidence={
            **workers_evidence(workers_where(full.counts(case) > 0)),
            "optypes": ["gc"] * bool(in_op.any()) + ["forward-compute"] * (not in_op.all()),
            "steps": case.steps[is_hit].tolist(),
            "pauses": full.size,
            "reported_by_client": int(np.isin(rows.kind, _NOTED).sum()),
            "mean_pause_s": float(full.excess_s.mean()),
            "longest_pause_s": float(full.excess_s.max()),
            "planned": every_steps is not None,
            "every_steps": every_steps or None,
        },
        basis="recorded" if recorded_s >= LIMITS.majority * rows.excess_s.sum() else "concluded",
    )


def _period(case: Case, pauses: Interruptions) -> int | None:
    """Steps between planned collections; 0 if unknown, None if they are not planned."""
    paused = pauses.seconds(case).reshape(case.steps.size, -1) > 0
    is_shared = (paused.mean(axis=1) >= INTERRUPTION_LIMITS.min_share_at_once) & (
        case.num_workers > 1
    )
    at = np.flatnonzero(is_shared)
    if is_shared[pauses.step].sum() < LIMITS.min_planned_share * pauses.size:
        return None
    if at.size == 1:
        return period_before(case, int(at[0])) or 0
    if at.size and is_shared[at[0] :].all():
        return 1
    return period(case.steps, is_shared.astype(np.float64)) or 0


def _culprits(case: Case, pauses: Interruptions) -> tuple[Culprit, ...]:
    """The few workers that have all pauses; none where the pauses wander between workers."""
    counts = pauses.counts(case)
    paused = workers_where(counts > LIMITS.max_stray_share * counts.max(initial=0))
    is_few = len(paused) <= max(1.0, LIMITS.max_share_of_few * counts.size)
    if not is_few or pauses.size < LIMITS.min_pauses or counts.size == 1:
        return ()
    log_chance = log(comb(counts.size, len(paused)))
    log_chance += pauses.size * log(len(paused) / counts.size)
    if log_chance > log(LIMITS.max_chance_of_few):
        return ()
    return case.culprits(paused)


def _fact(
    case: Case, pauses: Pauses, every_steps: int | None, culprits: tuple[Culprit, ...]
) -> str:
    full = pauses.full
    mean_s = f"for {formatting.seconds(float(full.excess_s.mean()))}"
    if every_steps is not None:
        often = {0: "at once", 1: "in every step"}.get(every_steps, f"every {every_steps} steps")
        return f"Every worker {STOPS} to collect garbage {often}, {mean_s}"
    num_paused = int((full.counts(case) > 0).sum())
    subject = f"{num_paused:,} different workers {STOP}" if num_paused > 1 else f"A worker {STOPS}"
    if culprits:
        subject = f"{names_of(culprits)} {STOP if is_plural(culprits) else STOPS}"
    num_steps = int(full.in_steps(case).sum())
    is_inside = pauses.rows.is_inside.mean() >= LIMITS.majority
    between_s = idle_time(case).reported_s["gc-pause"][full.step]
    is_between = full.is_first & (between_s >= LIMITS.majority * full.excess_s)
    where = "in a forward computation" if is_inside else "before a launch"
    if is_between.mean() >= LIMITS.majority:
        where = "between steps"
    return (
        f"{subject} {where} {mean_s} on average, as Python does to collect garbage: "
        f"{formatting.plural(full.size, 'time')} {steps_of(num_steps, case.steps.size)}"
    )


def period_before(case: Case, position: int) -> int | None:
    """Steps between long steps up to `position` in the window; None where not periodic."""
    history = case.extended_history
    end = history.num_before + position + 1
    longer_s = history.step_s[:end] - np.median(history.step_s[:end])
    if longer_s[-1] <= 0:
        return None
    steps = history.steps[:end][longer_s >= LIMITS.min_relative_excess * longer_s[-1]]
    apart = np.diff(steps)[-LIMITS.min_times_before :]
    if apart.size < LIMITS.min_times_before or (apart != apart[-1]).any():
        return None
    return int(apart[-1]) if apart[-1] >= LIMITS.min_steps_apart else None


def gc_pauses(case: Case) -> Pauses:
    """Pauses in all steps: planned ones may make steps odd."""
    inside = interruptions_of(case, InterruptionKind.LONG_BY_GC)
    before = interruptions_of(case, InterruptionKind.LATE_BY_GC)
    in_op = interruptions_of(case, InterruptionKind.GC_OP)
    longer = interruptions_of(case, InterruptionKind.LONG)
    longer = _without_stops(case, longer.where(~among(longer, inside)))
    is_shared = longer_at_once(case, longer)
    steps = np.unique(longer.step[is_shared])
    always = steps.size > LIMITS.max_planned_steps * case.steps.size
    again = steps.size >= LIMITS.min_pauses or any(period_before(case, int(at)) for at in steps)
    planned = longer.where(is_shared & again & (not always))
    others = longer.where(~is_shared)
    single, ratio, chance = _single_pauses(case, others.of_workers(~_stops_elsewhere(case, others)))
    if planned.size and not single.size:
        ratio, chance = INTERRUPTION_LIMITS.min_pause_ratio, LIMITS.planned_chance
    return Pauses(joined([inside, before, in_op, planned, single]), ratio, chance, always)


def _without_stops(case: Case, longer: Interruptions) -> Interruptions:
    """Without stops of a whole step or more, far longer than all other long computations.

    Such a stop, of which no client reports a collection, is another cause.
    """
    stops = [stop for stop in long_stops(case) if stop.rows.size]
    stops = [stop for stop in stops if not stop.is_all or not may_be_collection(case, stop)]
    is_stop, usual_s = np.zeros(longer.size, np.bool_), usual_step_s(case)
    for stop in sorted(stops, key=lambda stop: -stop.seconds):
        if stop.seconds < usual_s:
            break
        least_s = STOP_LIMITS.min_share_of_excess * stop.seconds
        is_stop |= (longer.step == stop.at) & (longer.excess_s >= least_s)
        others_s = float(longer.excess_s[~is_stop].max(initial=0.0))
        if stop.seconds >= LIMITS.min_times_others * others_s:
            return longer.where(~is_stop)
    return longer


def _stops_elsewhere(case: Case, longer: Interruptions) -> NDArray[np.bool_]:
    """[dp, pp], workers that stop during backward or before launches as well."""
    stops = stalls(case)
    far = longer.where(longer.ratio >= LIMITS.beyond_tails)
    forward = far.where(~far.is_backward).counts(case)
    others = stops.late.counts(case) + far.where(far.is_backward).counts(case)
    mixed = (forward > 0) & (others > 0) & (others >= LIMITS.max_other_stops * (forward + others))
    return np.asarray(stops.is_stalled | mixed)


def _single_pauses(case: Case, longer: Interruptions) -> tuple[Interruptions, float, float]:
    """Long forwards that are no noise, the ratio from which that is certain, and its chance."""
    typical_s = np.concatenate([group.median_s[0].ravel() for group in outliers(case)])
    usual_s = max(float(medians_of_known(typical_s)), _LEAST_USUAL_S)
    least_ratio = max(INTERRUPTION_LIMITS.min_pause_ratio, 1 + LIMITS.pause_s / usual_s)
    for ratio, by_chance in (
        (LIMITS.beyond_tails, LIMITS.max_chance),
        (least_ratio, LIMITS.max_chance_within_tails),
    ):
        forward, backward = _counts(longer, ratio, np.inf)
        chance = binomial_tail(forward, forward + backward, 0.5)
        if forward >= LIMITS.min_pauses and chance <= by_chance:
            is_pause = ~longer.is_backward & (longer.ratio >= _lowest(longer, ratio))
            return longer.where(is_pause), ratio, chance
    return longer.where(np.zeros(longer.size, np.bool_)), np.inf, 1.0


def _counts(longer: Interruptions, least: float, below: float) -> tuple[int, int]:
    """Forwards and backwards with ratios in [least, below)."""
    far = (longer.ratio >= least) & (longer.ratio < below)
    return int((far & ~longer.is_backward).sum()), int((far & longer.is_backward).sum())


def _lowest(longer: Interruptions, ratio: float) -> float:
    """The lowest ratio from which long forwards are pauses, at most `ratio`."""
    for lower in [tried for tried in LIMITS.ratios if tried < ratio]:
        forward, backward = _counts(longer, lower, ratio)
        if forward < LIMITS.forward_to_backward * backward + LIMITS.min_more_forwards:
            return ratio
        ratio = lower
    return ratio
