"""gc-pause: Python collects garbage in the middle of forward computations.

The collector stops only Python, which drives the forward; backward runs without it. So a pause is a
single long forward, while noise makes forward and backward long alike. A forward that is long on
nearly all workers at once, its backward as usual, is a planned collection.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    finding_sentence,
    is_plural,
    names_of,
    steps_of,
)
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.interruptions import (
    MIN_PAUSE_RATIO,
    MIN_S,
    MIN_SHARE_AT_ONCE,
    ComputationEvents,
    among,
    annotated_launches,
    annotated_pauses,
    join_events,
    long_computations,
    longer_at_once,
    no_events,
    stalls,
)
from app.diagnosis.evidence.stops import MIN_SHARE_OF_EXCESS, long_stops, usual_step_s
from app.diagnosis.finding import Worker
from app.diagnosis.repair import delays_repair, durations_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.engine.medians import medians_of_known
from app.engine.metrics import binomial_tail
from app.result.finding import Culprit, Persistence, RuledOut
from app.result.sentence import STOP, STOPS
from app.trace.ops import OP_CODES
from app.trace.window import Ints

# Probability that chance gives all pauses to so few workers.
MAX_CHANCE = 0.17
MAX_SHARE_OF_FEW = 0.34
# Pauses are planned if this share is in steps where nearly all workers pause.
MIN_PLANNED_SHARE = 0.8
# Where a client annotates pauses, or records `gc` operations.
ANNOTATED_CONFIDENCE = 0.97

_MAX_LISTED = 64
# Workers with fewer pauses than this share of the most affected one are left out.
MAX_STRAY_SHARE = 0.1
# Clients also annotate collections of young objects, a millisecond on every worker in every step:
# those shorter than this share of the longest are repaired, and show that a worker collects at all,
# but say nothing of when.
MIN_SHARE_OF_LONGEST = 0.1


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses by how they were found.

    `annotated` by the client inside computations and `between` them, `in_op` as `gc` operations,
    `single` as long forwards. `chance` is the probability of so many `single` ones above
    `certain_ratio` if forward and backward had equal tails. `always`: some forward is long on all
    workers in most steps, and was left out.
    """

    annotated: ComputationEvents
    between: ComputationEvents
    in_op: ComputationEvents
    single: ComputationEvents
    certain_ratio: float
    chance: float
    always: bool

    @property
    def in_computations(self) -> ComputationEvents:
        """Every operation with a pause inside it once."""
        return join_events([self.annotated, self.in_op, self.single])

    @property
    def all_pauses(self) -> ComputationEvents:
        """Every paused or late operation."""
        return join_events([self.in_computations, self.between])

    @property
    def certain(self) -> ComputationEvents:
        """Without the shorter ones, some of which may be noise."""
        single = self.single.where(self.single.ratio >= self.certain_ratio)
        return join_events([self.annotated, self.between, self.in_op, single])

    @property
    def full(self) -> ComputationEvents:
        """The certain ones without collections of young objects."""
        both = (self.annotated, self.between)
        limit_s = MIN_SHARE_OF_LONGEST * max(each.excess_s.max(initial=0.0) for each in both)
        annotated, between = (each.where(each.excess_s >= limit_s) for each in both)
        return replace(self, annotated=annotated, between=between).certain


class GcPause(Detector):
    """Single long forwards of changing workers, or of all at once where planned."""

    cause = "gc-pause"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = gc_pauses(case)
        if found.all_pauses.size:
            return _suspicion(case, found)
        if found.always:
            return RuledOut(
                self.cause,
                "the same forward computation is longer on all workers in most steps: that may be "
                "what it computes, and no client reports a pause",
                insufficient=True,
            )
        return RuledOut(
            self.cause,
            "no forward computation is long while its backward is as usual, as a pause makes it",
        )


def _suspicion(case: Case, found: Pauses) -> Suspicion:
    inside, between, pauses = found.in_computations, found.between, found.full
    every_steps = _period(case, pauses)
    culprits = () if every_steps is not None else _culprits(case, found.certain)
    is_hit = _steps(case, pauses)
    onset = onset_of_hits(case.steps, is_hit)
    persistence: Persistence | None = onset.persistence
    if every_steps is None and not culprits and persistence == "chronic":
        persistence = "rotating"
    score = ANNOTATED_CONFIDENCE if found.all_pauses.size > found.single.size else 1 - found.chance
    fact = _fact(case, found, every_steps, culprits)

    return Suspicion(
        cause=GcPause.cause,
        score=score,
        confidence=0.97 * score,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        repair=durations_repair(inside.blamed_ops(case, inside.least_s)) if inside.size else None,
        delays=delays_repair(between.blamed_ops(case, between.excess_s)) if between.size else None,
        onset_step=onset.onset_step,
        end_step=onset.end_step,
        persistence=persistence,
        evidence=_evidence(case, found, every_steps),
        basis="recorded" if found.annotated.size or found.in_op.size else "concluded",
    )


def _period(case: Case, pauses: ComputationEvents) -> int | None:
    """Steps between planned collections; 0 if unknown, None if they are not planned."""
    shared = paused_together(case, pauses)
    if np.isin(pauses.step, np.flatnonzero(shared)).sum() < MIN_PLANNED_SHARE * pauses.size:
        return None
    at = np.flatnonzero(shared)
    if at.size == 1:
        return period_before(case, int(at[0])) or 0
    return int(np.gcd.reduce(np.diff(case.steps[at]))) if at.size else 0


def _culprits(case: Case, pauses: ComputationEvents) -> tuple[Culprit, ...]:
    """The few workers that have all pauses; none where the pauses wander between workers."""
    counts = pauses.counts(case)
    paused = np.argwhere(counts > MAX_STRAY_SHARE * counts.max(initial=0))
    if len(paused) > max(1.0, MAX_SHARE_OF_FEW * counts.size) or pauses.size < 2 or counts.size < 2:
        return ()
    log_chance = _log_comb(counts.size, len(paused))
    log_chance += pauses.size * np.log(len(paused) / counts.size)
    if log_chance > np.log(MAX_CHANCE):
        return ()
    return case.culprits(_workers(paused))


def _log_comb(of: int, chosen: int) -> float:
    """Logarithm of the binomial coefficient."""
    return lgamma(of + 1) - lgamma(chosen + 1) - lgamma(of - chosen + 1)


def _workers(places: Ints) -> list[Worker]:
    return [(int(dp_rank), int(stage)) for dp_rank, stage in places]


def _steps(case: Case, events: ComputationEvents) -> NDArray[np.bool_]:
    """[steps], whether a worker paused."""
    is_hit = np.zeros(case.steps.size, np.bool_)
    is_hit[events.step] = True
    return is_hit


def _fact(
    case: Case,
    found: Pauses,
    every_steps: int | None,
    culprits: tuple[Culprit, ...],
) -> str:
    pauses = found.full
    mean_s = f"for {formatting.seconds(float(pauses.excess_s.mean()))}"
    if every_steps is not None:
        often = {0: "at once", 1: "in every step"}.get(every_steps, f"every {every_steps} steps")
        return f"Every worker {STOPS} to collect garbage {often}, {mean_s}"
    num_paused = int((pauses.counts(case) > 0).sum())
    subject = f"{names_of(culprits)} {STOP if is_plural(culprits) else STOPS}"
    if not culprits:
        subject = (
            f"{num_paused:,} different workers {STOP}" if num_paused > 1 else f"A worker {STOPS}"
        )
    num_steps = int(_steps(case, pauses).sum())
    in_forward = found.annotated.size + found.in_op.size + found.single.size
    where = "in a forward computation" if in_forward >= found.between.size else "before a launch"
    return (
        f"{subject} {where} {mean_s} on average, as Python does to collect garbage: "
        f"{pauses.size:,} times {steps_of(num_steps, case.steps.size)}"
    )


def _evidence(case: Case, found: Pauses, every_steps: int | None) -> dict[str, Any]:
    pauses = found.full
    paused = _workers(np.argwhere(pauses.counts(case) > 0))
    in_forward = found.annotated.size + found.between.size + found.single.size
    return {
        "workers": [list(worker) for worker in paused[:_MAX_LISTED]],
        "num_workers": len(paused),
        "optypes": ["gc"] * bool(found.in_op.size) + ["forward-compute"] * bool(in_forward),
        "steps": case.steps[_steps(case, pauses)].tolist(),
        "pauses": pauses.size,
        "reported_by_client": found.annotated.size + found.between.size,
        "mean_pause_s": float(pauses.excess_s.mean()),
        "longest_pause_s": float(pauses.excess_s.max()),
        "planned": every_steps is not None,
        "every_steps": every_steps or None,
    }


# A pause in one step of the window is planned if so many steps before it were as long, at equal
# distances of at least MIN_STEPS_APART.
MIN_TIMES_BEFORE = 2
MIN_STEPS_APART = 2
# Of the excess of this step, for another one to be as long.
MIN_RELATIVE_EXCESS = 0.5


def period_before(case: Case, position: int) -> int | None:
    """Steps between long steps up to `position` in the window; None where not periodic."""
    history = case.extended_history
    end = history.num_before + position + 1
    longer_s = history.step_s[:end] - np.median(history.step_s[:end])
    if longer_s[-1] <= 0:
        return None
    steps = history.steps[:end][longer_s >= MIN_RELATIVE_EXCESS * longer_s[-1]]
    apart = np.diff(steps)[-MIN_TIMES_BEFORE:]
    if apart.size < MIN_TIMES_BEFORE or (apart != apart[-1]).any() or apart[-1] < MIN_STEPS_APART:
        return None
    return int(apart[-1])


# Healthy noise reaches 3 times the median; medians of few values are inexact.
BEYOND_TAILS = 3.6
# Pauses within that noise are searched if they take at least so many seconds.
PAUSE_S = 0.1
# Probability of so many long forwards if both directions were alike: beyond and within the noise.
MAX_PAUSE_CHANCE = 0.26
MAX_CHANCE_WITHIN_TAILS = 0.02
MIN_PAUSES = 2
# Once pauses are certain, shorter ones count too while long forwards are so many times, and so many
# more, than long backwards.
FORWARD_TO_BACKWARD = 4.0
MIN_MORE_FORWARDS = 2
_RATIOS = (1.25, 1.5, 2.0, 2.5, 3.0, BEYOND_TAILS)
# A stop so many times longer than all others is no collection.
MIN_TIMES_OTHERS = 3.0
# The `gc` operation takes no time unless garbage is collected in it: a share of the step.
GC_SHARE = 0.005
# Share of a worker's stops in backward or before launches from which garbage is not the cause.
MAX_OTHER_STOPS = 0.2
# Taken as the chance of planned pauses.
MAX_PLANNED_CHANCE = 0.1
# A forward long on all workers in a larger share of the steps is how the job computes.
MAX_PLANNED_STEPS = 0.5


def gc_pauses(case: Case) -> Pauses:
    """Pauses in all steps: planned ones may make steps odd."""
    annotated, in_op = annotated_pauses(case), _in_op(case)
    between = annotated_launches(case, "gc-pause")
    found = case.cached(long_computations)
    found = _without_stop(case, found.where(~among(found, annotated)))
    shared = longer_at_once(case, found)
    stops_elsewhere = _stops_elsewhere(case, found.where(~shared))[found.dp_rank, found.stage]
    steps = np.unique(found.step[shared])
    always = steps.size > MAX_PLANNED_STEPS * case.steps.size
    again = steps.size >= MIN_PAUSES or any(period_before(case, int(at)) for at in steps)
    planned = found.where(shared & again & (not always))
    single, ratio, chance = _single_pauses(case, found.where(~shared & ~stops_elsewhere))
    if planned.size and not single.size:
        ratio, chance = MIN_PAUSE_RATIO, MAX_PLANNED_CHANCE
    return Pauses(annotated, between, in_op, join_events([planned, single]), ratio, chance, always)


def _without_stop(case: Case, found: ComputationEvents) -> ComputationEvents:
    """Without a single stop of a whole step or more, far longer than all other long computations.

    Collections of one job are alike; what stops it once and for so long is another cause.
    """
    stops = [stop for stop in case.cached(long_stops) if stop.workers and not stop.is_all]
    if not stops:
        return found
    longest = max(stops, key=lambda stop: stop.seconds)
    is_stop = (found.step == longest.at) & (found.excess_s >= MIN_SHARE_OF_EXCESS * longest.seconds)
    others_s = float(found.excess_s[~is_stop].max(initial=0.0))
    is_single = longest.seconds >= max(usual_step_s(case), MIN_TIMES_OTHERS * others_s)
    return found.where(~is_stop) if is_single else found


def paused_together(case: Case, events: ComputationEvents) -> NDArray[np.bool_]:
    """[steps], whether nearly all workers paused."""
    paused = events.seconds(case).reshape(case.steps.size, -1) > 0
    is_shared: NDArray[np.bool_] = paused.mean(axis=1) >= MIN_SHARE_AT_ONCE
    return is_shared if paused.shape[1] > 1 else np.zeros_like(is_shared)


def _single_pauses(case: Case, found: ComputationEvents) -> tuple[ComputationEvents, float, float]:
    """Long forwards that are no noise, the ratio from which that is certain, and its chance."""
    enough = (~found.is_backward).sum() >= MIN_PAUSES
    for ratio, by_chance in (
        (BEYOND_TAILS, MAX_PAUSE_CHANCE),
        (_ratio_of_a_pause(case) if enough else np.inf, MAX_CHANCE_WITHIN_TAILS),
    ):
        forward, backward = _counts(found, ratio, np.inf)
        chance = binomial_tail(forward, forward + backward, 0.5)
        if forward >= MIN_PAUSES and chance <= by_chance:
            return found.where(_is_pause(found, _lowest(found, ratio))), ratio, chance
    return found.where(np.zeros(found.size, np.bool_)), np.inf, 1.0


def _stops_elsewhere(case: Case, found: ComputationEvents) -> NDArray[np.bool_]:
    """[dp, pp], workers that stop during backward or before launches as well."""
    stops = case.cached(stalls)
    far = found.where(found.ratio >= BEYOND_TAILS)
    forward = far.where(~far.is_backward).counts(case)
    others = stops.late.counts(case) + far.where(far.is_backward).counts(case)
    mixed = (forward > 0) & (others > 0) & (others >= MAX_OTHER_STOPS * (forward + others))
    return np.asarray(stops.is_stalled | mixed)


def _ratio_of_a_pause(case: Case) -> float:
    """Ratio of a forward with a pause of PAUSE_S to the usual one."""
    typical_s = np.concatenate([each.median_s[0].ravel() for each in case.outliers])
    usual_s = medians_of_known(typical_s)
    return max(MIN_PAUSE_RATIO, 1 + PAUSE_S / float(usual_s))


def _is_pause(found: ComputationEvents, ratio: float) -> NDArray[np.bool_]:
    return np.asarray(~found.is_backward & (found.ratio >= ratio))


def _counts(found: ComputationEvents, least: float, below: float) -> tuple[int, int]:
    """Forwards and backwards with ratios in [least, below)."""
    far = (found.ratio >= least) & (found.ratio < below)
    return int((far & ~found.is_backward).sum()), int((far & found.is_backward).sum())


def _lowest(found: ComputationEvents, ratio: float) -> float:
    """The lowest ratio from which long forwards are pauses, at most `ratio`."""
    for lower in sorted((each for each in _RATIOS if each < ratio), reverse=True):
        forward, backward = _counts(found, lower, ratio)
        if forward < FORWARD_TO_BACKWARD * backward + MIN_MORE_FORWARDS:
            return ratio
        ratio = lower
    return ratio


def _in_op(case: Case) -> ComputationEvents:
    """`gc` operations that took time."""
    return join_events([_of_group(case, *each) for each in enumerate(case.groups)])


def _of_group(case: Case, number: int, group: Features) -> ComputationEvents:
    template, own_s = group.replayer.template, group.replayer.durations.recorded_s
    if "gc" not in template.type_names:
        return no_events()
    rows = np.flatnonzero(template.optype == OP_CODES["gc"])
    took_s = own_s[rows]
    is_long = took_s > GC_SHARE * float(group.replayer.simulated_s.mean())
    if not is_long.any():
        return no_events()
    short_s = took_s[~is_long]
    usual_s = float(np.median(short_s)) if short_s.size else 0.0
    at, lane = np.nonzero(is_long)
    dp_rank, step = np.divmod(lane, len(group.steps))
    return ComputationEvents(
        group=np.full(at.size, number),
        row=rows[at],
        lane=lane,
        item=np.full(at.size, -1),
        step=group.positions[step],
        dp_rank=dp_rank,
        stage=template.stage[rows[at]],
        is_backward=np.zeros(at.size, np.bool_),
        ratio=took_s[at, lane] / max(usual_s, MIN_S),
        excess_s=took_s[at, lane] - usual_s,
        least_s=np.full(at.size, usual_s),
    )
