"""checkpoint-stall: all workers, or those of some hosts, stop at a regular interval.

They write a checkpoint where a step ends, or between two steps; the client may mark such steps
(`kind="checkpoint"`), which are then left out of all other figures. A checkpoint is no fault as
long as it is cheap. Where all workers are idle between steps and none are marked, nothing says that
it is a checkpoint (observations.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, is_plural, names_of
from app.diagnosis.evidence.step_gaps import total_s
from app.diagnosis.evidence.stops import (
    RegularStops,
    Stop,
    begins_apart,
    blamed_rows,
    gaps_between,
    is_whole,
    late_begins,
    long_stops,
    longest_of,
    stops_before_steps,
    usual_step_s,
)
from app.diagnosis.statistics.persistence import LIMITS as PERSISTENCE
from app.diagnosis.statistics.persistence import Onset, period
from app.formatting import percent, plural, seconds
from app.result.finding import Culprit, RuledOut
from app.result.words import BEGIN, STOP, STOPS, TAKES, in_tense


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """Thresholds of checkpoint-stall. All were chosen, unless a comment says otherwise."""

    # The longest stop takes at most so many times the shortest one: each writes the same state.
    max_ratio: float = 3.0
    # Before steps that begin late, stops every other step may be waits for data.
    min_every_at_begin: int = 3
    # A share of GPU time. Cheaper checkpoints are as usual,
    min_cost: float = 0.05
    # and cheaper stops without an interval are no reason for doubt.
    least_cost: float = 0.02
    # Where only a part of a stop is recorded, what some workers stop longer than others: about a
    # tenth of it, if they write alike, so that a smaller part may be of a checkpoint as usual.
    least_cost_seen: float = 0.1 * 0.05
    # Confidence, which is the score as well, of stops seen whole, in part, and where the client
    # marks the steps.
    confidence: float = 0.85
    confidence_of_little: float = 0.7
    marked_confidence: float = 0.97


LIMITS = CheckpointLimits()
# Which workers begin, and how, where a part of the stops was not recorded: by `of_one`.
_BEGINNERS = {True: ("one worker begins", "late"), False: ("the workers begin", "apart")}


class CheckpointStall(Detector):
    """Stops at the end of steps, between them or before they begin, every so many steps."""

    cause = "checkpoint-stall"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        marked_s = _marked_s(case)
        if marked_s:
            return self._of_marked(case, marked_s)
        regular = _stops(case)
        every = _interval(case, regular)
        if every is None:
            return self._without_interval(case, regular)
        return self._of_interval(case, regular, every)

    def _of_marked(self, case: Case, marked_s: Mapping[int, float]) -> Suspicion | RuledOut:
        lost_s, mean_s = sum(marked_s.values()), float(np.mean([*marked_s.values()]))
        cost = lost_s / (total_s(case) + lost_s + len(marked_s) * usual_step_s(case))
        fact = (
            f"a checkpoint step, as the client marks it, {TAKES} {seconds(mean_s)} longer than "
            "others"
        )
        if cost < LIMITS.min_cost:
            reason = f"{in_tense(fact, is_past=False)}: {percent(cost)} of the time"
            return self.denied(reason, cost=cost, mean_stop_s=mean_s)
        return Suspicion(
            cause=self.cause,
            score=LIMITS.marked_confidence,
            confidence=LIMITS.marked_confidence,
            culprits=(),
            fact=fact,
            cost=cost,
            onset=Onset(None, "chronic"),
            basis="recorded",
            evidence={
                "steps": list(marked_s),
                "stops": len(marked_s),
                "mean_stop_s": mean_s,
                "seconds_lost": lost_s,
                "reported_by_client": True,
            },
        )

    def _without_interval(self, case: Case, regular: RegularStops) -> RuledOut:
        stops = regular.stops
        if not stops:
            reason = "workers stop neither where a step ends or begins nor between two steps"
            return self.denied(reason)
        share = sum(stop.seconds for stop in stops) / total_s(case)
        longest = longest_of(stops)
        longest_s = seconds(longest.seconds)
        workers = "all workers" if longest.is_all else "some workers"
        where = "at the end of" if longest.place == "end" else "before"
        times = "once" if len(stops) == 1 else f"{len(stops)} times, {percent(share)} of the time"
        beginners, late = _BEGINNERS[regular.of_one]
        stopped = (
            f"{workers} stop {times}, for {longest_s} {where} step {case.steps[longest.at]}"
            if regular.are_whole
            else f"{beginners} {plural(len(stops), 'step')} up to {longest_s} {late}"
        )
        answer = self.cannot_tell if share >= LIMITS.least_cost else self.denied
        return answer(
            f"{stopped}: {PERSISTENCE.min_times} stops at one interval are needed to see a "
            "checkpoint",
            cost=share,
            stops=len(stops),
        )

    def _of_interval(self, case: Case, regular: RegularStops, every: int) -> Suspicion | RuledOut:
        stops, took_s = regular.stops, [stop.seconds for stop in regular.stops]
        mean_s, lost_s = float(np.mean(took_s)), float(np.sum(took_s))
        cost = lost_s / total_s(case)
        if regular.of_one or (not regular.are_whole and cost < LIMITS.least_cost_seen):
            beginners, late = _BEGINNERS[regular.of_one]
            return self.cannot_tell(
                f"every {every} steps {beginners} up to {seconds(mean_s)} {late}, as after a "
                "checkpoint: how long that takes is in no step, and times between steps are not "
                "recorded",
                stops=len(stops),
            )
        # Workers that stop in every one of the stops; none where all do.
        named = (
            [] if any(stop.is_all for stop in stops) else [{*stop.rows.workers} for stop in stops]
        )
        workers = sorted(set.intersection(*named)) if named else []
        culprits = case.culprits(workers)
        fact = _fact(culprits, regular, every, mean_s)
        is_idle = stops[0].place != "end" and np.isfinite(gaps_between(case).before_s).any()
        if is_idle and not culprits:
            return self.cannot_tell(
                f"{in_tense(fact, is_past=False)}: none of them was reported",
                cost=cost,
                mean_stop_s=mean_s,
                stops=len(stops),
            )
        blamed = blamed_rows(case, stops)
        confidence = LIMITS.confidence if regular.are_whole else LIMITS.confidence_of_little
        return Suspicion(
            cause=self.cause,
            score=confidence,
            confidence=confidence,
            max_confidence=1.0 if regular.are_whole else confidence,
            culprits=culprits,
            fact=fact,
            repair=blamed.repair(case),
            delays=blamed.delays(case),
            cost=cost if regular.are_whole else None,
            is_cost_recorded=True,
            min_cost=LIMITS.min_cost,
            onset=Onset(None, "chronic"),
            evidence={
                "workers": [list(worker) for worker in workers],
                "optypes": sorted({stop.optype for stop in stops if stop.optype}),
                "steps": case.steps[[stop.at for stop in stops]].tolist(),
                "stops": len(stops),
                "every_steps": every,
                "mean_stop_s": mean_s,
                "seconds_lost": lost_s,
                "reported_by_client": False,
            },
        )


def _marked_s(case: Case) -> dict[int, float]:
    """Steps with known neighbours that the client marks as checkpoints: seconds that each costs."""
    kinds = {skipped.step: skipped.kind for skipped in case.replay.window.skipped}
    gaps, usual_s = gaps_between(case), usual_step_s(case)
    cost_s: dict[int, float] = {}
    for at in np.flatnonzero((gaps.num_left_out > 0) & np.isfinite(gaps.before_s)).tolist():
        between = range(int(case.steps[at - 1]) + 1, int(case.steps[at]))
        if all(kinds.get(step) == "checkpoint" for step in between):
            longer_s = float(gaps.before_s[at]) - len(between) * (usual_s + gaps.usual_s)
            cost_s |= dict.fromkeys(between, max(0.0, longer_s) / len(between))
    return cost_s


def _stops(case: Case) -> RegularStops:
    """Stops where steps end, between them or before they begin.

    With known times between steps, what a step takes longer after a gap belongs to the stop: its
    workers do not all go on at once.
    """
    stops = {stop.at: stop for stop in long_stops(case) if stop.place in ("end", "between")}
    before = {stop.at: stop for stop in stops_before_steps(case)}
    recorded_s = case.report.recorded_s
    others = np.ones(case.steps.size, np.bool_)
    others[[*stops, *before]] = False
    usual_s = float(np.median(recorded_s[others])) if others.any() else usual_step_s(case)
    if any(np.isfinite(gaps_between(case).before_s)):
        span_s = late_begins(case).span_s
        for at in {*stops} & {*before}:
            if stops[at].place == "between":
                late_s = before[at].seconds
                more_s = float(np.clip(span_s[at] - usual_s, -late_s, late_s))
                took_s = stops[at].seconds + more_s
                stops[at] = replace(before[at], seconds=took_s, place="between")
        return RegularStops(_alike(stops))
    for at, stop in before.items():
        if at not in stops and is_whole(case, stop):
            stops[at] = replace(stop, seconds=float(recorded_s[at]) - usual_s)
    return RegularStops(_alike(stops)) if stops else begins_apart(case)


def _alike(stops: Mapping[int, Stop]) -> list[Stop]:
    """Those that are not far shorter than the longest one."""
    longest_s = max((stop.seconds for stop in stops.values()), default=0.0)
    return [stops[at] for at in sorted(stops) if stops[at].seconds >= longest_s / LIMITS.max_ratio]


def _interval(case: Case, regular: RegularStops) -> int | None:
    """Steps between two stops, if they come at one interval and are about equally long."""
    stops = regular.stops
    is_stop = np.isin(np.arange(case.steps.size), [stop.at for stop in stops])
    every = period(case.steps, is_stop.astype(np.float64))
    at_begin = any(stop.place == "begin" for stop in stops)
    if every is None or (at_begin and every < LIMITS.min_every_at_begin):
        return None
    took_s = [stop.seconds for stop in stops]
    # Of stops that were not seen whole the lengths are unknown.
    are_alike = max(took_s) <= LIMITS.max_ratio * min(took_s) or not regular.are_whole
    return every if are_alike else None


def _fact(culprits: tuple[Culprit, ...], regular: RegularStops, every: int, mean_s: float) -> str:
    place = regular.stops[0].place
    if not regular.are_whole:
        return (
            f"every {every} steps all workers {BEGIN} a step up to {seconds(mean_s)} apart, as "
            "after a checkpoint or an evaluation, which takes longer than that: times between "
            "steps are not recorded, so its cost is not known"
        )
    where = {"between": "between two steps", "begin": "before a step begins"}
    subject = f"{names_of(culprits)} {STOP if is_plural(culprits) else STOPS}"
    return (
        f"{subject if culprits else f'all workers {STOP}'} for {seconds(mean_s)} "
        f"{where.get(place, 'where a step ends')}, every {every} steps, as a checkpoint"
        f"{' or an evaluation' * (place != 'end')} does"
    )
