"""job-stop: in one step, or very few, one worker or all of them do nothing for a long time.

All wait for a worker whose launches or computation stand still: a page fault, a frozen process, a
hung file system. An evaluation or a checkpoint stops all workers too, where a step begins or ends:
such a stop is not named here.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from typing_extensions import override

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import (
    CostFigures,
    Detector,
    Suspicion,
    finding_sentence,
    is_plural,
    names_of,
)
from app.diagnosis.evidence.stops import (
    MIN_STEPS,
    Stop,
    blamed_stops,
    long_stops,
    usual_step_s,
)
from app.diagnosis.finding import Worker
from app.diagnosis.repair import delays_repair, durations_repair
from app.result.finding import RuledOut
from app.result.sentence import STOP, STOPS, WAIT

# A stop takes at least so many usual steps,
MIN_TIMES_STEP = 1.0
# and so many times the longest other excess of the window: it is no tail of ordinary noise.
MIN_TIMES_OTHERS = 3.0
# More stops than this share of the steps are not single ones.
MAX_SHARE_OF_STEPS = 0.15
# The replay has a stop if it has this share of it.
MIN_SHARE_REPLAYED = 0.5
_CONFIDENCE = 0.95
_MAX_LISTED = 64


class JobStop(Detector):
    """A stop that is long beyond all other variation of the window."""

    cause = "job-stop"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if case.steps.size < MIN_STEPS:
            return RuledOut(
                self.cause, f"fewer than {MIN_STEPS} steps do not show how long one takes", True
            )
        usual_s = usual_step_s(case)
        huge = [
            each for each in case.cached(long_stops) if each.seconds >= MIN_TIMES_STEP * usual_s
        ]
        if not huge:
            return _none(case, usual_s)
        named = [each for each in huge if not _may_be_planned(case, each)]
        if not named:
            return RuledOut(
                self.cause,
                f"{_fact('all workers', 'stop', huge[:1], [int(case.steps[huge[0].at])])}: an "
                "evaluation, a checkpoint or a collection does the same",
                insufficient=True,
                figures={"longest_stop_s": max(each.seconds for each in huge)},
            )
        if len(named) > max(1.0, MAX_SHARE_OF_STEPS * case.steps.size):
            return RuledOut(self.cause, "workers stop in too many steps for single stops")
        others_s = _longest_other_s(case, huge)
        if min(each.seconds for each in named) < MIN_TIMES_OTHERS * others_s:
            return RuledOut(
                self.cause,
                f"other steps vary by up to {formatting.seconds(others_s)}, so that a longer one "
                "may be chance",
                figures={"longest_stop_s": max(each.seconds for each in named)},
            )
        return _suspicion(case, named)


def _none(case: Case, usual_s: float) -> RuledOut:
    recorded_s = np.where(case.is_usual, case.report.recorded_s, 0.0)
    longest = int(recorded_s.argmax())
    excess_s = float(recorded_s[longest]) - usual_s
    if excess_s < MIN_TIMES_STEP * usual_s:
        return RuledOut(JobStop.cause, "no worker stops for as long as a whole step takes")
    return RuledOut(
        JobStop.cause,
        f"step {case.steps[longest]} takes {formatting.seconds(excess_s)} longer than usual, but "
        "no worker's operations show a single stop",
        insufficient=True,
        figures={"longest_excess_s": excess_s},
    )


def _may_be_planned(case: Case, stop: Stop) -> bool:
    """Whether an evaluation, a checkpoint or a planned collection looks the same."""
    if not stop.is_all:
        return False
    if stop.place != "middle":
        return True
    rows = {(each.row, each.worker[1]) for each in stop.workers}
    # A collection is in the same forward computation of every replica.
    is_same = len(rows) <= case.parallelism.pp_size
    return is_same and stop.is_inside and stop.optype == "forward-compute"


def _longest_other_s(case: Case, huge: list[Stop]) -> float:
    """The longest excess of a step without such a stop, seconds; odd steps do not count."""
    others = case.is_usual.copy()
    others[[each.at for each in huge if each.place != "between"]] = False
    if not others.any():
        return 0.0
    recorded_s = case.report.recorded_s
    return max(0.0, float(recorded_s[others].max()) - usual_step_s(case))


def _where(stop: Stop) -> str:
    if stop.place == "between":
        return "between two steps"
    label = _OPERATIONS.get(stop.optype) or formatting.optype_in_text(stop.optype)
    return f"{'in' if stop.is_inside else 'before'} {label}"


_OPERATIONS = {
    "forward-compute": "a forward computation",
    "backward-compute": "a backward computation",
    "optimizer": "the optimizer",
}
# More steps are counted.
_MAX_STEPS = 4


def _fact(who: str, stop: str, stops: list[Stop], steps: list[int]) -> str:
    longest = max(stops, key=lambda each: each.seconds)
    took, where = formatting.seconds(longest.seconds), _where(longest)
    if len(steps) == 1:
        when = f"before step {steps[0]}" if longest.place == "between" else f"in step {steps[0]}"
        inside = "" if longest.place == "between" else f" {where}"
        return f"{who} {stop} for {took}{inside} {when}"
    listed = ", ".join(map(str, steps[:_MAX_STEPS]))
    more = f" and {len(steps) - _MAX_STEPS} more" if len(steps) > _MAX_STEPS else ""
    return f"{who} {stop} {len(steps)} times (steps {listed}{more}), for up to {took} {where}"


def _workers(stops: list[Stop]) -> list[Worker]:
    """Those to be named; none where all stop."""
    named = [each.worker for stop in stops if not stop.is_all for each in stop.workers]
    return list(dict.fromkeys(named))


def _is_replayed(case: Case, stop: Stop) -> bool:
    """Whether the replay has the stop: a transfer took as long, so no delay is to be added."""
    replayed_s = case.replay.simulated_s
    excess_s = float(replayed_s[stop.at] - np.median(replayed_s))
    return not stop.workers[0].is_inside and excess_s >= MIN_SHARE_REPLAYED * stop.seconds


def _wording(fact: str, costs: CostFigures) -> str:
    """The sentence; the fact has its steps already."""
    is_past = costs.is_past or costs.end_step is not None
    costs = replace(costs, onset_step=None, end_step=None, is_past=is_past)
    return finding_sentence(fact, costs)


def _suspicion(case: Case, stops: list[Stop]) -> Suspicion:
    workers = [] if any(each.is_all for each in stops) else _workers(stops)
    culprits = case.culprits(workers)
    longest = max(stops, key=lambda each: each.seconds)
    at = np.array([each.at for each in stops])
    steps = case.steps[at].tolist()
    blamed = blamed_stops(case, [each for each in stops if not _is_replayed(case, each)])
    excess_s = np.maximum(0.0, case.report.recorded_s[at] - usual_step_s(case))
    who = names_of(culprits) if culprits else "all workers"
    fact = _fact(who, STOP if not culprits or is_plural(culprits) else STOPS, stops, steps)
    fact += f", and all others {WAIT}" if culprits else ""
    evidence: dict[str, Any] = {
        "workers": [list(worker) for worker in workers[:_MAX_LISTED]],
        "num_workers": len(workers) or case.num_workers,
        "optypes": sorted({each.optype for each in stops if each.optype}),
        "steps": steps,
        "stops": len(stops),
        "longest_stop_s": longest.seconds,
        "seconds_lost": float(np.sum([each.seconds for each in stops])),
    }
    return Suspicion(
        cause=JobStop.cause,
        score=_CONFIDENCE,
        confidence=_CONFIDENCE,
        culprits=culprits,
        wording=partial(_wording, fact),
        repair=durations_repair(blamed.durations),
        delays=delays_repair(blamed.delays),
        cost=float(excess_s.sum() / case.report.recorded_s.sum()),
        is_cost_recorded=True,
        min_cost=0.02,
        onset_step=int(steps[0]),
        end_step=int(steps[-1]),
        persistence="transient",
        onset_form=None,
        evidence=evidence,
    )
