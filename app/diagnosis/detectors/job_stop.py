"""job-stop: in one step, or very few, one worker or all of them do nothing for a long time.

All wait for a worker whose launches or computation stand still: a page fault, a frozen process, a
hung file system. An evaluation or a checkpoint stops all workers too, where a step begins or ends:
such a stop is not named here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, is_plural, names_of, workers_evidence
from app.diagnosis.evidence.idle_time import idle_time
from app.diagnosis.evidence.stops import LIMITS as STOP_LIMITS
from app.diagnosis.evidence.stops import (
    Stop,
    blamed_rows,
    long_stops,
    longest_of,
    may_be_collection,
    usual_step_s,
)
from app.diagnosis.evidence.usual_steps import is_usual
from app.diagnosis.statistics.persistence import Onset, period
from app.formatting import optype_in_text, percent, seconds
from app.result.finding import RuledOut
from app.result.words import STOP, STOPS, WAIT


@dataclass(frozen=True, slots=True)
class JobStopLimits:
    """Thresholds of job-stop. All were chosen on made jobs."""

    # A stop takes so many times the longest other excess of the window: it is no tail of ordinary
    # noise.
    min_times_others: float = 3.0
    # Stops are weighed by what they take of the window's time. One that takes as long as so many
    # usual steps is huge, and named from the first share on; shorter ones, which a rare long
    # computation may be as well, from the second one.
    huge_steps: float = 1.0
    min_cost: float = 0.02
    min_cost_of_short: float = 0.05
    # The replay has a stop if it has this share of it.
    min_share_replayed: float = 0.5
    # Score and confidence.
    confidence: float = 0.95


LIMITS = JobStopLimits()


class JobStop(Detector):
    """A stop that is long beyond all other variation of the window."""

    cause = "job-stop"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if case.steps.size < STOP_LIMITS.min_steps:
            few = f"fewer than {STOP_LIMITS.min_steps} steps"
            return self.cannot_tell(f"{few} do not show how long one takes")
        stops = long_stops(case)
        if not stops:
            return self._without_stops(case)
        longest = longest_of(stops)
        unplanned = [stop for stop in stops if not _may_be_planned(case, stop)]
        others_s = _longest_other_s(case, stops)
        named = [stop for stop in unplanned if stop.seconds >= LIMITS.min_times_others * others_s]
        if named and _share(case, named) >= _least_cost(case, named):
            return _suspicion(case, named)
        if not unplanned and longest.seconds >= LIMITS.huge_steps * usual_step_s(case):
            return self.cannot_tell(
                f"{_fact('all workers stop', [longest], [int(case.steps[longest.at])])}: an "
                "evaluation, a checkpoint or a collection does the same",
                longest_stop_s=longest.seconds,
            )
        if unplanned and not named:
            return self.denied(
                f"other steps vary by up to {seconds(others_s)}, so that a longer one may be "
                "chance",
                longest_stop_s=longest.seconds,
            )
        return self.denied(
            f"the stops of workers take {percent(_share(case, unplanned))} of the time",
            longest_stop_s=longest.seconds,
        )

    def _without_stops(self, case: Case) -> RuledOut:
        recorded_s = np.where(is_usual(case), case.report.recorded_s, 0.0)
        longest = int(recorded_s.argmax())
        excess_s = float(recorded_s[longest]) - usual_step_s(case)
        if excess_s < LIMITS.huge_steps * usual_step_s(case):
            return self.denied("no worker stops for long")
        return self.cannot_tell(
            f"step {case.steps[longest]} takes {seconds(excess_s)} longer than usual, but no "
            "worker's operations show a single stop",
            longest_excess_s=excess_s,
        )


def _least_cost(case: Case, stops: list[Stop]) -> float:
    is_huge = longest_of(stops).seconds >= LIMITS.huge_steps * usual_step_s(case)
    return LIMITS.min_cost if is_huge else LIMITS.min_cost_of_short


def _share(case: Case, stops: list[Stop]) -> float:
    """What these stops take of the recorded time."""
    at = [stop.at for stop in stops]
    excess_s = np.maximum(0.0, case.report.recorded_s[at] - usual_step_s(case))
    return float(excess_s.sum() / case.report.recorded_s.sum())


def _may_be_planned(case: Case, stop: Stop) -> bool:
    """Whether an evaluation, a checkpoint or a planned collection looks the same."""
    if stop.place == "between":
        return True
    # After idle time of all ranks some go on later than others.
    if stop.place == "begin" and stop.seconds <= idle_time(case).unreported_s[stop.at]:
        return True
    if not stop.is_all:
        return False
    if stop.place != "middle":
        return True
    # A collection is in the same forward computation of every replica.
    is_same = np.unique(stop.rows.row).size <= case.parallelism.pp_size
    is_same = is_same and may_be_collection(case, stop)
    return is_same and stop.is_inside and stop.optype == "forward-compute"


def _longest_other_s(case: Case, stops: Sequence[Stop]) -> float:
    """The longest excess of a step without a stop, seconds; odd steps do not count."""
    others = is_usual(case).copy()
    others[[stop.at for stop in stops if stop.place != "between"]] = False
    longest_s = case.report.recorded_s.max(initial=0.0, where=others)
    return max(0.0, float(longest_s) - usual_step_s(case))


_OPERATIONS = {
    "forward-compute": "a forward computation",
    "backward-compute": "a backward computation",
    "optimizer": "the optimizer",
}
# More steps are counted.
_MAX_STEPS = 4


def _fact(subject: str, stops: list[Stop], steps: list[int]) -> str:
    longest = longest_of(stops)
    took, is_between = seconds(longest.seconds), longest.place == "between"
    label = _OPERATIONS.get(longest.optype) or optype_in_text(longest.optype)
    where = f"{'in' if longest.is_inside else 'before'} {label}"
    if len(steps) == 1:
        when = f"before step {steps[0]}" if is_between else f"{where} in step {steps[0]}"
        return f"{subject} for {took} {when}"
    listed = ", ".join(map(str, steps[:_MAX_STEPS]))
    more = f" and {len(steps) - _MAX_STEPS} more" if len(steps) > _MAX_STEPS else ""
    where = "between two steps" if is_between else where
    return f"{subject} {len(steps)} times (steps {listed}{more}), for up to {took} {where}"


def _is_replayed(case: Case, stop: Stop) -> bool:
    """Whether the replay has the stop: a transfer took as long, so no delay is to be added."""
    replayed_s = case.replay.simulated_s
    excess_s = float(replayed_s[stop.at] - np.median(replayed_s))
    is_late = not stop.rows.is_inside[0]
    return is_late and excess_s >= LIMITS.min_share_replayed * stop.seconds


def _suspicion(case: Case, stops: list[Stop]) -> Suspicion:
    # None is named where all stop.
    named = [] if any(stop.is_all for stop in stops) else stops
    workers = list(dict.fromkeys(worker for stop in named for worker in stop.rows.workers))
    culprits = case.culprits(workers)
    at = np.array([stop.at for stop in stops])
    steps = case.steps[at].tolist()
    blamed = blamed_rows(case, [stop for stop in stops if not _is_replayed(case, stop)])
    lost_s = np.zeros(case.steps.size)
    np.add.at(lost_s, at, [stop.seconds for stop in stops])
    fact = _fact(f"all workers {STOP}", stops, steps)
    if culprits:
        subject = f"{names_of(culprits)} {STOP if is_plural(culprits) else STOPS}"
        fact = f"{_fact(subject, stops, steps)}, and all others {WAIT}"
    return Suspicion(
        cause=JobStop.cause,
        score=LIMITS.confidence,
        confidence=LIMITS.confidence,
        culprits=culprits,
        fact=fact,
        repair=blamed.repair(case),
        delays=blamed.delays(case),
        cost=_share(case, stops),
        is_cost_recorded=True,
        min_cost=LIMITS.min_cost,
        onset=Onset(int(steps[0]), "transient", int(steps[-1]), period(case.steps, lost_s)),
        onset_form=None,
        evidence={
            **workers_evidence(workers),
            **({} if workers else {"num_workers": case.num_workers}),
            "optypes": sorted({stop.optype for stop in stops if stop.optype}),
            "steps": steps,
            "stops": len(stops),
            "longest_stop_s": longest_of(stops).seconds,
            "seconds_lost": float(np.sum([stop.seconds for stop in stops])),
        },
    )
