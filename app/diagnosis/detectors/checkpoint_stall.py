"""checkpoint-stall: all workers, or those of some hosts, stop at a regular interval.

They write a checkpoint where a step ends, or between two steps; the client may mark such steps
(`kind="checkpoint"`), which are then left out of all other figures. A checkpoint is no fault as
long as it is cheap.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from typing_extensions import override

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, finding_sentence, names_of, percent
from app.diagnosis.evidence.stops import (
    StepGaps,
    Stop,
    blamed_stops,
    gaps_between,
    long_stops,
    usual_step_s,
)
from app.diagnosis.finding import RuledOut, Worker
from app.diagnosis.repair import delays_repair, durations_repair
from app.diagnosis.sentence import STOP, STOPS, TAKES, in_tense

# So many stops show an interval.
MIN_STOPS = 3
# The longest stop takes at most so many times the shortest one.
MAX_RATIO = 3.0
# Cheaper checkpoints are as usual.
MIN_COST = 0.05
_CONFIDENCE = 0.85
_MARKED_CONFIDENCE = 0.97


class CheckpointStall(Detector):
    """Stops at the end of steps, or between them, every so many steps."""

    cause = "checkpoint-stall"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        marked = _marked(case)
        if marked is not None:
            return _of_marked(case, marked)
        stops = [each for each in case.cached(long_stops) if each.place in ("end", "between")]
        every = _interval(case, stops)
        if every is None:
            return _none(case, stops)
        return _suspicion(case, stops, every)


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
    return float(case.report.recorded_s.sum() + gaps.before_s[chosen].sum())


def _interval(case: Case, stops: list[Stop]) -> int | None:
    """Steps between two stops, if they come at one interval and are about equally long."""
    steps = np.unique(case.steps[[each.at for each in stops]]) if stops else np.empty(0, np.int64)
    if steps.size < MIN_STOPS:
        return None
    every = int(np.gcd.reduce(np.diff(steps)))
    inside = case.steps[(case.steps >= steps[0]) & (case.steps <= steps[-1])]
    due = inside[(inside - steps[0]) % every == 0]
    seconds = [each.seconds for each in stops]
    is_regular = every > 1 and due.size == steps.size
    return every if is_regular and max(seconds) <= MAX_RATIO * min(seconds) else None


def _none(case: Case, stops: list[Stop]) -> RuledOut:
    if not stops:
        return RuledOut(
            CheckpointStall.cause, "workers stop neither where a step ends nor between two steps"
        )
    lost_s = sum(each.seconds for each in stops)
    share = lost_s / _total_s(case)
    longest = max(stops, key=lambda stop: stop.seconds)
    who = "all workers" if longest.is_all else "some workers"
    where = "before step" if longest.place == "between" else "at the end of step"
    times = "once" if len(stops) == 1 else f"{len(stops)} times, {percent(share)} of the time"
    return RuledOut(
        CheckpointStall.cause,
        f"{who} stop {times}, for {formatting.seconds(longest.seconds)} {where} "
        f"{case.steps[longest.at]}: {MIN_STOPS} stops at one interval are needed to see a "
        "checkpoint",
        insufficient=True,
        figures={"cost": share, "stops": len(stops)},
    )


def _suspicion(case: Case, stops: list[Stop], every: int) -> Suspicion:
    workers = _workers(stops)
    culprits = case.culprits(workers)
    mean_s = float(np.mean([each.seconds for each in stops]))
    is_between = stops[0].place == "between"
    where = "between two steps" if is_between else "where a step ends"
    who = names_of(culprits) if culprits else "all workers"
    fact = (
        f"{who} {STOPS if len(culprits) == 1 else STOP} for {formatting.seconds(mean_s)} "
        f"{where}, every {every} steps, as a checkpoint{' or an evaluation' * is_between} does"
    )
    blamed = blamed_stops(case, stops)
    lost_s = float(np.sum([each.seconds for each in stops]))
    return Suspicion(
        cause=CheckpointStall.cause,
        score=_CONFIDENCE,
        confidence=_CONFIDENCE,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        repair=None if is_between else durations_repair(blamed.durations),
        delays=None if is_between else delays_repair(blamed.delays),
        cost=lost_s / _total_s(case),
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


def _workers(stops: list[Stop]) -> list[Worker]:
    """Workers that stop in every one of the stops; none where all do."""
    if any(each.is_all for each in stops):
        return []
    named = [{each.worker for each in stop.workers} for stop in stops]
    return sorted(set.intersection(*named))
