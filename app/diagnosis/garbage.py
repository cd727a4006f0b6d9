"""Which computations were interrupted by a collection of garbage?

Python is kept from computing by its collector only where it drives the computation, which is
forward: backward runs without it. So a pause is a lone long forward, and tails that noise has in
both directions are none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.at_once import LEAST_RATIO, NEARLY_ALL, at_once, period_before
from app.diagnosis.case import Case
from app.diagnosis.events import Events, joined, long_ones, none
from app.diagnosis.features import Features
from app.diagnosis.noted import LEAST_S, noted_pauses
from app.diagnosis.stalls import stalls
from app.diagnosis.tails import at_least
from app.trace.ops import OP_CODES
from app.trace.window import Ints

# Healthy tails are cut off at 3 times the median; medians of few values are off by some.
BEYOND_TAILS = 3.6
# Shorter ones are looked for within the tails too, if they are as long as pauses are.
PAUSE_S = 0.1
# P(so many forward of all, if both directions were alike): within the tails it must be far less.
BY_CHANCE = 0.26
BY_CHANCE_WITHIN_TAILS = 0.02
MIN_PAUSES = 2
# Once there are pauses, shorter ones are blamed too, as long as so many times more forwards than
# backwards, and some more, are of such a length.
FORWARD_TO_BACKWARD = 4.0
SOME_MORE = 2
_RATIOS = (1.25, 1.5, 2.0, 2.5, 3.0, BEYOND_TAILS)
# The `gc` operation takes no time unless garbage is collected in it: a share of the step.
GC_SHARE = 0.005
# Of a worker's stops, so many backwards and launches say that it is not its garbage.
OTHERS = 0.2
# P(chance) where the same forward is long on everybody in some steps and not in others.
SURELY_PLANNED = 0.1
# Of the steps: where everybody is longer in more of them, that is how the job computes.
MOST_STEPS = 0.5


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses that were found, and how.

    `noted` were told by the client, `in_op` are `gc` operations, `lone` are long forwards.
    `chance` is how likely so many `lone` ones of `sure_ratio` are if forward and backward have
    equal tails. `always`: some forward is long on everybody in most steps, and so was left out.
    """

    noted: Events
    in_op: Events
    lone: Events
    sure_ratio: float
    chance: float
    always: bool

    @property
    def everything(self) -> Events:
        """Every paused operation once."""
        return joined([self.noted, self.in_op, self.lone])

    @property
    def sure(self) -> Events:
        """Those that cannot be a tail: of the shorter ones some may be."""
        lone = self.lone.where(self.lone.ratio >= self.sure_ratio)
        return joined([self.noted, self.in_op, lone])


def pauses(case: Case) -> Pauses:
    """All of a case's, of odd steps too: collections may be planned."""
    noted, in_op = noted_pauses(case), _in_op(case)
    found = case.ask(long_ones)
    found = found.where(~_among(found, noted))
    shared = at_once(case, found)
    troubled = _has_other_trouble(case, found.where(~shared))[found.dp_rank, found.stage]
    steps = np.unique(found.step[shared])
    always = steps.size > MOST_STEPS * case.steps.size
    again = steps.size >= MIN_PAUSES or any(period_before(case, int(at)) for at in steps)
    planned = found.where(shared & again & (not always))
    lone, ratio, chance = _lone(case, found.where(~shared & ~troubled))
    if planned.size and not lone.size:
        ratio, chance = LEAST_RATIO, SURELY_PLANNED
    return Pauses(noted, in_op, joined([planned, lone]), ratio, chance, always)


def together(case: Case, events: Events) -> NDArray[np.bool_]:
    """[steps], whether nearly all workers paused."""
    paused = events.seconds(case).reshape(case.steps.size, -1) > 0
    is_shared: NDArray[np.bool_] = paused.mean(axis=1) >= NEARLY_ALL
    return is_shared if paused.shape[1] > 1 else np.zeros_like(is_shared)


def _lone(case: Case, found: Events) -> tuple[Events, float, float]:
    """Long forwards that are no tail, from which ratio on that is sure, and the chance of it."""
    enough = (~found.is_backward).sum() >= MIN_PAUSES
    for ratio, by_chance in (
        (BEYOND_TAILS, BY_CHANCE),
        (_ratio_of_a_pause(case) if enough else np.inf, BY_CHANCE_WITHIN_TAILS),
    ):
        forward, backward = _counts(found, ratio, np.inf)
        chance = at_least(forward, forward + backward, 0.5)
        if forward >= MIN_PAUSES and chance <= by_chance:
            return found.where(_is_pause(found, _lowest(found, ratio))), ratio, chance
    return found.where(np.zeros(found.size, np.bool_)), np.inf, 1.0


def _has_other_trouble(case: Case, found: Events) -> NDArray[np.bool_]:
    """[dp, pp], workers that are stopped before and during backwards as well."""
    stops = case.ask(stalls)
    far = found.where(found.ratio >= BEYOND_TAILS)
    forward = far.where(~far.is_backward).counts(case)
    others = stops.late.counts(case) + far.where(far.is_backward).counts(case)
    mixed = (forward > 0) & (others > 0) & (others >= OTHERS * (forward + others))
    return np.asarray(stops.is_stalled | mixed)


def _among(found: Events, others: Events) -> NDArray[np.bool_]:
    """[events], whether each is one of the others."""
    return np.isin(_keys(found), _keys(others))


def _keys(events: Events) -> Ints:
    """[events], one number for each operation; groups and rows are few, lanes below 2^36."""
    return ((events.group << 20) + events.row << 36) + events.lane


def _ratio_of_a_pause(case: Case) -> float:
    """How many times as long as usual a forward with a short pause is."""
    usual_s = float(np.nanmedian(np.concatenate([each.median_s[0] for each in case.outliers])))
    return max(LEAST_RATIO, 1 + PAUSE_S / usual_s)


def _is_pause(found: Events, ratio: float) -> NDArray[np.bool_]:
    return np.asarray(~found.is_backward & (found.ratio >= ratio))


def _counts(found: Events, least: float, below: float) -> tuple[int, int]:
    """How many forwards and how many backwards are so much longer than usual."""
    far = (found.ratio >= least) & (found.ratio < below)
    return int((far & ~found.is_backward).sum()), int((far & found.is_backward).sum())


def _lowest(found: Events, ratio: float) -> float:
    """From where on long forwards are pauses and no noise, at most `ratio`."""
    for lower in sorted((each for each in _RATIOS if each < ratio), reverse=True):
        forward, backward = _counts(found, lower, ratio)
        if forward < FORWARD_TO_BACKWARD * backward + SOME_MORE:
            return ratio
        ratio = lower
    return ratio


def _in_op(case: Case) -> Events:
    """`gc` operations in which garbage was collected."""
    return joined([_of_group(case, *each) for each in enumerate(case.groups)])


def _of_group(case: Case, number: int, group: Features) -> Events:
    template, own_s = group.replayer.template, group.replayer.durations.recorded_s
    if not template.has("gc"):
        return none()
    rows = np.flatnonzero(template.optype == OP_CODES["gc"])
    took_s = own_s[rows]
    is_long = took_s > GC_SHARE * float(group.replayer.simulated_s.mean())
    if not is_long.any():
        return none()
    short_s = took_s[~is_long]
    usual_s = float(np.median(short_s)) if short_s.size else 0.0
    at, lane = np.nonzero(is_long)
    dp_rank, step = np.divmod(lane, len(group.steps))
    return Events(
        group=np.full(at.size, number),
        row=rows[at],
        lane=lane,
        item=np.full(at.size, -1),
        step=case.at(group)[step],
        dp_rank=dp_rank,
        stage=template.stage[rows[at]],
        is_backward=np.zeros(at.size, np.bool_),
        ratio=took_s[at, lane] / max(usual_s, LEAST_S),
        excess_s=took_s[at, lane] - usual_s,
        least_s=np.full(at.size, usual_s),
    )
