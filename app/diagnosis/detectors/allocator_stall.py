"""allocator-stall: the memory allocator, or a false dependency, stops few workers irregularly."""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, finding_sentence, names_of
from app.diagnosis.evidence.data_waits import data_waits
from app.diagnosis.evidence.interruptions import (
    ComputationEvents,
    Stalls,
    late_computations,
    long_computations,
    stalls,
)
from app.diagnosis.evidence.late_workers import late_hosts
from app.diagnosis.evidence.outliers import LaunchDelays
from app.diagnosis.finding import RuledOut
from app.diagnosis.repair import delays_repair, durations_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.trace.window import Floats

# Stops in fewer steps may be a single event.
MIN_STEPS = 2
# A stalled worker's delay counts from so many times the usual one.
MIN_TIMES_USUAL = 5.0
# A worker launched late in this share of its computations, and of its stops, is a late host.
MAX_SHARE_OF_COMPUTATIONS = 0.5
MIN_SHARE_OF_ALL = 0.9
MIN_WORKERS = 2


class AllocatorStall(Detector):
    """Irregular stops in forward and backward of few workers, whatever the sequence lengths."""

    cause = "allocator-stall"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if case.num_workers < MIN_WORKERS:
            return RuledOut(self.cause, "the only worker has no peer to be compared with", True)
        found = case.cached(stalls)
        launched_late = _launched_late(case, found)
        if launched_late.any():
            found = replace(found, is_stalled=found.is_stalled & ~launched_late)
            if not found.is_stalled.any():
                return RuledOut(
                    self.cause,
                    "the workers that stop are launched late before most of their computations, "
                    "none of which takes longer: that is work of their hosts",
                )
        if not found.is_stalled.any():
            return RuledOut(
                self.cause,
                "no worker has far more interrupted computations than the others have",
                figures={"usual_share": found.usual_share},
            )
        mine = found.stops.where(found.is_stalled[found.stops.dp_rank, found.stops.stage])
        num_steps = np.unique(mine.step).size
        if num_steps < MIN_STEPS:
            return RuledOut(
                self.cause,
                "computations of few workers were interrupted, all of them in one step",
                insufficient=True,
                figures={"steps": num_steps},
            )
        return _suspicion(case, found, mine)


def _launched_late(case: Case, found: Stalls) -> NDArray[np.bool_]:
    """[dp, pp], late hosts whose stops are launch delays before most computations."""
    hosts = np.zeros(found.is_stalled.shape, np.bool_)
    for each in case.cached(late_hosts):
        hosts[each.worker] = True
    stops, late = found.stops.counts(case), found.late.counts(case)
    is_regular = late >= MAX_SHARE_OF_COMPUTATIONS * found.trials
    return np.asarray(hosts & is_regular & (late >= MIN_SHARE_OF_ALL * stops))


def _suspicion(case: Case, found: Stalls, stops: ComputationEvents) -> Suspicion:
    workers = [(int(dp), int(stage)) for dp, stage in np.argwhere(found.is_stalled)]
    culprits = case.culprits(workers)
    longer = _of(case.cached(long_computations), found)
    # A first forward that is late repeatedly waits for data.
    loads = case.cached(data_waits).waits.any()
    later = _of(late_computations(case, lambda late: ~(late.is_first & loads), _is_late), found)
    later = later.where(case.is_usual[later.step])
    is_hit = np.zeros(case.steps.size, np.bool_)
    is_hit[stops.step] = True
    onset = onset_of_hits(case.steps, is_hit)
    stop_in = (
        "stops for a while in {} of its"
        if len(culprits) == 1
        else ("stop for a while in {} of their")
    )
    score = float(1 - np.exp(max(found.log_chance[found.is_stalled].max() / 4, -50.0)))

    fact = (
        f"{names_of(culprits)} {stop_in.format(f'{stops.size:,}')} computations, forward and "
        "backward, whatever their length"
    )

    return Suspicion(
        cause=AllocatorStall.cause,
        score=score,
        confidence=0.95 * score,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        repair=durations_repair(longer.blamed_ops(case, longer.least_s)),
        delays=delays_repair(later.blamed_ops(case, later.excess_s)),
        onset_step=onset.onset_step,
        end_step=onset.end_step,
        persistence=onset.persistence,
        evidence={
            "workers": [list(worker) for worker in workers],
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[is_hit].tolist(),
            "interrupted": stops.size,
            "share_interrupted": stops.size / max(1, found.trials[found.is_stalled].sum()),
            "usual_share": found.usual_share,
            "mean_stop_s": float(stops.excess_s.mean()),
            "seconds_lost": float(longer.excess_s.sum() + later.excess_s.sum()),
        },
    )


def _of(events: ComputationEvents, found: Stalls) -> ComputationEvents:
    return events.where(found.is_stalled[events.dp_rank, events.stage])


def _is_late(late: LaunchDelays) -> Floats:
    """Shorter delays of stalled workers count as well."""
    return np.full(late.rows.size, MIN_TIMES_USUAL * late.usual_s)
