"""checkpoint-stall: all workers, or those of some hosts, stop at a regular interval.

They write a checkpoint where a step ends, or between two steps; the client may mark such steps
(`kind="checkpoint"`), which are then left out of all other figures. A checkpoint is no fault as
long as it is cheap.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from typing_extensions import override

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    finding_sentence,
    is_plural,
    names_of,
    percent,
    plural,
)
from app.diagnosis.evidence.late_begins import (
    begins_apart,
    is_whole,
    late_begins,
    stops_before_steps,
)
from app.diagnosis.evidence.stops import (
    StepGaps,
    Stop,
    blamed_stops,
    gaps_between,
    long_stops,
    usual_step_s,
)
from app.diagnosis.finding import Worker
from app.diagnosis.repair import delays_repair, durations_repair
from app.result.finding import Culprit, RuledOut
from app.result.sentence import BEGIN, STOP, STOPS, TAKES, in_tense

# So many stops show an interval: two evaluations, or one and a checkpoint, are alike as well.
MIN_STOPS = 3
# The longest stop takes at most so many times the shortest one.
MAX_RATIO = 3.0
# Before steps that begin late, stops every other step may be waits for data.
MIN_EVERY_AT_BEGIN = 3
# Cheaper checkpoints are as usual.
MIN_COST = 0.05
# Cheaper stops without an interval are no reason for doubt.
LEAST_COST = 0.02
# Where only a part of a stop is recorded, what some workers stop longer than others: about a tenth
# of it, if they write alike, so that a smaller part may be of a checkpoint as usual.
LEAST_COST_SEEN = 0.1 * MIN_COST
_CONFIDENCE = 0.85
_CONFIDENCE_OF_LITTLE = 0.7
_MARKED_CONFIDENCE = 0.97


class CheckpointStall(Detector):
    """Stops at the end of steps, between them or before they begin, every so many steps."""

    cause = "checkpoint-stall"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        marked = _marked(case)
        if marked is not None:
            return _of_marked(case, marked)
        found = _stops(case)
        every = _interval(case, found)
        return _none(case, found) if every is None else _suspicion(case, found, every)


@dataclass(frozen=True, slots=True)
class _MarkedSteps:
    """Steps that the client marks as checkpoints, and seconds that each costs."""

    steps: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.seconds))


def _marked(case: Case) -> _MarkedSteps | None:
    """Marked steps with known neighbours; None without one."""
    kinds = {each.step: each.kind for each in case.replay.window.skipped}
    gaps, usual_s = case.cached(gaps_between), usual_step_s(case)
    steps: list[int] = []
    seconds: list[float] = []
    for at in np.flatnonzero((gaps.num_left_out > 0) & np.isfinite(gaps.before_s)).tolist():
        between = range(int(case.steps[at - 1]) + 1, int(case.steps[at]))
        if all(kinds.get(step) == "checkpoint" for step in between):
            steps += between
            cost_s = float(gaps.before_s[at]) - len(between) * (usual_s + gaps.usual_s)
            seconds += [max(0.0, cost_s) / len(between)] * len(between)
    return _MarkedSteps(tuple(steps), tuple(seconds)) if steps else None


def _of_marked(case: Case, marked: _MarkedSteps) -> Suspicion | RuledOut:
    lost_s = sum(marked.seconds)
    total_s = _total_s(case) + lost_s + len(marked.steps) * usual_step_s(case)
    cost = lost_s / total_s
    takes = (
        f"a checkpoint step, as the client marks it, {TAKES} {formatting.seconds(marked.mean_s)} "
        "longer than others"
    )
    if cost < MIN_COST:
        return RuledOut(
            CheckpointStall.cause,
            f"{in_tense(takes, is_past=False)}: {percent(cost)} of the time",
            figures={"cost": cost, "mean_stop_s": marked.mean_s},
        )
    return Suspicion(
        cause=CheckpointStall.cause,
        score=_MARKED_CONFIDENCE,
        confidence=_MARKED_CONFIDENCE,
        culprits=(),
        wording=partial(finding_sentence, takes),
        cost=cost,
        persistence="chronic",
        evidence={
            "steps": list(marked.steps),
            "stops": len(marked.steps),
            "mean_stop_s": marked.mean_s,
            "seconds_lost": lost_s,
            "reported_by_client": True,
        },
    )


def _total_s(case: Case) -> float:
    """Recorded seconds of the steps, and of large gaps between successive ones."""
    gaps: StepGaps = case.cached(gaps_between)
    chosen = gaps.is_large & (gaps.num_left_out == 0)
    # After a gap a step counts from its usual begin (steady_state.py).
    lasted_s = np.where(
        chosen,
        np.maximum(case.report.recorded_s, case.cached(late_begins).span_s),
        case.report.recorded_s,
    )
    return float(lasted_s.sum() + gaps.before_s[chosen].sum())


@dataclass(frozen=True, slots=True)
class _Stops:
    """Stops that checkpoints may be, ascending.

    Where a part of them was not recorded, they are not `are_whole`: workers begin steps apart, or
    with `of_one` the same worker begins late.
    """

    stops: list[Stop]
    are_whole: bool = True
    of_one: bool = False


def _stops(case: Case) -> _Stops:
    """Stops where steps end, between them or before they begin.

    With known times between steps, what a step takes longer after a gap belongs to the stop: its
    workers do not all go on at once.
    """
    seen = {each.at: each for each in case.cached(long_stops) if each.place in ("end", "between")}
    before = {each.at: each for each in stops_before_steps(case)}
    usual_s = _usual_other_s(case, {*seen, *before})
    if any(np.isfinite(case.cached(gaps_between).before_s)):
        span_s = case.cached(late_begins).span_s
        for at in {*seen} & {*before}:
            stop, late_s = seen[at], before[at].seconds
            if stop.place == "between":
                more_s = float(np.clip(span_s[at] - usual_s, -late_s, late_s))
                seen[at] = replace(before[at], seconds=stop.seconds + more_s, place="between")
        return _Stops(_alike(seen))
    whole = {at: each for at, each in before.items() if is_whole(case, each)}
    for at in {*whole} - {*seen}:
        seen[at] = replace(whole[at], seconds=float(case.report.recorded_s[at]) - usual_s)
    if seen:
        return _Stops(_alike(seen))
    apart = begins_apart(case)
    return _Stops(list(apart.stops), are_whole=not apart.stops, of_one=apart.of_one)


def _alike(stops: Mapping[int, Stop]) -> list[Stop]:
    """Those that are not far shorter than the longest one."""
    longest_s = max((each.seconds for each in stops.values()), default=0.0)
    return [stops[at] for at in sorted(stops) if stops[at].seconds >= longest_s / MAX_RATIO]


def _usual_other_s(case: Case, stopped: Collection[int]) -> float:
    """The median recorded time of steps without a stop."""
    others = np.ones(case.steps.size, np.bool_)
    others[list(stopped)] = False
    return float(np.median(case.report.recorded_s[others])) if others.any() else usual_step_s(case)


def _interval(case: Case, found: _Stops) -> int | None:
    """Steps between two stops, if they come at one interval and are about equally long."""
    stops = found.stops
    steps = np.unique(case.steps[[each.at for each in stops]]) if stops else np.empty(0, np.int64)
    if steps.size < MIN_STOPS:
        return None
    every = int(np.gcd.reduce(np.diff(steps)))
    due = case.steps[(case.steps >= steps[0]) & (case.steps <= steps[-1])]
    due = due[(due - steps[0]) % every == 0]
    least = MIN_EVERY_AT_BEGIN if any(each.place == "begin" for each in stops) else 2
    if every < least or due.size != steps.size:
        return None
    seconds = [each.seconds for each in stops]
    # Of stops that were not seen whole the lengths are unknown.
    return every if max(seconds) <= MAX_RATIO * min(seconds) or not found.are_whole else None


def _none(case: Case, found: _Stops) -> RuledOut:
    stops = found.stops
    if not stops:
        return RuledOut(
            CheckpointStall.cause,
            "workers stop neither where a step ends or begins nor between two steps",
        )
    share = sum(each.seconds for each in stops) / _total_s(case)
    longest = max(stops, key=lambda stop: stop.seconds)
    who = "all workers" if longest.is_all else "some workers"
    where = {"end": "at the end of", "begin": "before"}.get(longest.place, "before")
    times = "once" if len(stops) == 1 else f"{len(stops)} times, {percent(share)} of the time"
    seen = (
        f"{who} stop {times}, for {formatting.seconds(longest.seconds)} {where} step "
        f"{case.steps[longest.at]}"
        if found.are_whole
        else f"{_beginners(found)} {plural(len(stops), 'step')} up to "
        f"{formatting.seconds(longest.seconds)} {'late' if found.of_one else 'apart'}"
    )
    return RuledOut(
        CheckpointStall.cause,
        f"{seen}: {MIN_STOPS} stops at one interval are needed to see a checkpoint",
        insufficient=share >= LEAST_COST,
        figures={"cost": share, "stops": len(stops)},
    )


def _beginners(found: _Stops) -> str:
    return "one worker begins" if found.of_one else "the workers begin"


def _suspicion(case: Case, found: _Stops, every: int) -> Suspicion | RuledOut:
    stops = found.stops
    mean_s = float(np.mean([each.seconds for each in stops]))
    lost_s = float(np.sum([each.seconds for each in stops]))
    cost = lost_s / _total_s(case)
    if found.of_one or (not found.are_whole and cost < LEAST_COST_SEEN):
        return RuledOut(
            CheckpointStall.cause,
            f"every {every} steps {_beginners(found)} up to {formatting.seconds(mean_s)} "
            f"{'late' if found.of_one else 'apart'}, as after a checkpoint: how long that takes "
            "is in no step, and times between steps are not recorded",
            insufficient=True,
            figures={"stops": len(stops)},
        )
    workers = _workers(stops)
    culprits = case.culprits(workers)
    blamed = blamed_stops(case, stops)
    confidence = _CONFIDENCE if found.are_whole else _CONFIDENCE_OF_LITTLE
    return Suspicion(
        cause=CheckpointStall.cause,
        score=confidence,
        confidence=confidence,
        max_confidence=1.0 if found.are_whole else confidence,
        culprits=culprits,
        wording=partial(finding_sentence, _fact(culprits, found, every, mean_s)),
        repair=durations_repair(blamed.durations),
        delays=delays_repair(blamed.delays),
        cost=cost if found.are_whole else None,
        is_cost_recorded=True,
        min_cost=MIN_COST,
        persistence="chronic",
        evidence={
            "workers": [list(worker) for worker in workers],
            "optypes": sorted({each.optype for each in stops if each.optype}),
            "steps": case.steps[[each.at for each in stops]].tolist(),
            "stops": len(stops),
            "every_steps": every,
            "mean_stop_s": mean_s,
            "seconds_lost": lost_s,
            "reported_by_client": False,
        },
    )


def _fact(culprits: tuple[Culprit, ...], found: _Stops, every: int, mean_s: float) -> str:
    place = found.stops[0].place
    if not found.are_whole:
        return (
            f"every {every} steps all workers {BEGIN} a step up to {formatting.seconds(mean_s)} "
            "apart, as after a checkpoint or an evaluation, which takes longer than that: times "
            "between steps are not recorded, so its cost is not known"
        )
    where = {"between": "between two steps", "begin": "before a step begins"}
    who = names_of(culprits) if culprits else "all workers"
    stop = STOP if not culprits or is_plural(culprits) else STOPS
    return (
        f"{who} {stop} for {formatting.seconds(mean_s)} "
        f"{where.get(place, 'where a step ends')}, every {every} steps, as a checkpoint"
        f"{' or an evaluation' * (place != 'end')} does"
    )


def _workers(stops: list[Stop]) -> list[Worker]:
    """Workers that stop in every one of the stops; none where all do."""
    if any(each.is_all for each in stops):
        return []
    named = [{each.worker for each in stop.workers} for stop in stops]
    return sorted(set.intersection(*named))
