"""allocator-stall: the memory allocator, or a false dependency, stops few workers irregularly."""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, finding_sentence, is_plural, names_of
from app.diagnosis.evidence.interruptions import ComputationEvents, Stalls, stalls
from app.diagnosis.evidence.stalled_workers import chance_of_one_host, held_up, launched_late
from app.diagnosis.finding import Worker
from app.diagnosis.repair import delays_repair, durations_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.result.finding import RuledOut
from app.result.sentence import STOP, STOPS

# Stops in fewer steps may be a single event.
MIN_STEPS = 2
# A late host whose stops are late launches by this share has no other stops.
MIN_SHARE_OF_ALL = 0.9
# Several workers of one host, by such a chance, are stopped by their host.
MAX_CHANCE_OF_ONE_HOST = 0.05
MIN_WORKERS = 2


class AllocatorStall(Detector):
    """Irregular stops in forward and backward of few workers, whatever the sequence lengths."""

    cause = "allocator-stall"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if case.num_workers < MIN_WORKERS:
            return RuledOut(self.cause, "the only worker has no peer to be compared with", True)
        found = case.cached(stalls)
        is_late = _only_launched_late(case, found)
        if is_late.any():
            found = replace(found, is_stalled=found.is_stalled & ~is_late)
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
        workers = [(int(dp), int(stage)) for dp, stage in np.argwhere(found.is_stalled)]
        if len(workers) > 1 and chance_of_one_host(case, workers) < MAX_CHANCE_OF_ONE_HOST:
            return RuledOut(
                self.cause,
                f"{len(workers):,} workers of one host stop irregularly, and none elsewhere: their "
                "memory allocators do so, or something else that uses the CPUs of the host",
                insufficient=True,
                figures={"workers": len(workers)},
            )
        return _suspicion(case, found, mine, workers)


def _only_launched_late(case: Case, found: Stalls) -> NDArray[np.bool_]:
    """[dp, pp], late hosts whose stops are launch delays before most computations."""
    stops, late = found.stops.counts(case), found.late.counts(case)
    return np.asarray(launched_late(case, found) & (late >= MIN_SHARE_OF_ALL * stops))


def _suspicion(
    case: Case, found: Stalls, stops: ComputationEvents, workers: list[Worker]
) -> Suspicion:
    culprits = case.culprits(workers)
    lost = held_up(case, found.is_stalled)
    is_hit = np.zeros(case.steps.size, np.bool_)
    is_hit[stops.step] = True
    onset = onset_of_hits(case.steps, is_hit)
    stop, its = (STOP, "their") if is_plural(culprits) else (STOPS, "its")
    score = float(1 - np.exp(max(found.log_chance[found.is_stalled].max() / 4, -50.0)))

    fact = (
        f"{names_of(culprits)} {stop} for a while in {stops.size:,} of {its} computations, forward "
        "and backward, whatever their length"
    )

    return Suspicion(
        cause=AllocatorStall.cause,
        score=score,
        confidence=0.95 * score,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        repair=durations_repair(lost.longer.blamed_ops(case, lost.longer.least_s)),
        delays=delays_repair(lost.later.blamed_ops(case, lost.later.excess_s)),
        onset_step=onset.onset_step,
        end_step=onset.end_step,
        persistence=onset.persistence,
        evidence={
            "workers": [list(worker) for worker in workers],
            "optypes": ["forward-compute", "backward-compute"],
            "steps": case.steps[is_hit].tolist(),
            "interrupted": stops.size,
            "share_interrupted": stops.size / max(1, int(found.trials[found.is_stalled].sum())),
            "usual_share": found.usual_share,
            "mean_stop_s": float(stops.excess_s.mean()),
            "seconds_lost": lost.seconds_lost,
        },
    )
