"""Root cause: the memory allocator, or a false dependency, stops a few workers here and there."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.blamed import delays_of, repair_of
from app.diagnosis.case import Case
from app.diagnosis.comings import coming
from app.diagnosis.delays import Delays
from app.diagnosis.detector import Costed, Detector, Suspicion
from app.diagnosis.events import Events, late_ones, long_ones
from app.diagnosis.finding import RuledOut
from app.diagnosis.late_workers import late_hosts
from app.diagnosis.stalls import Stalls, stalls
from app.diagnosis.waits import waits
from app.diagnosis.wording import sentence, who
from app.trace.window import Floats

# Stops in fewer steps than this may be one and the same hiccup.
MIN_STEPS = 2
# Of a worker that stops, a delay this many times the usual one is no usual one.
SHORT_TIMES_USUAL = 5.0
# Of its computations and of its stops: a worker that is launched late so often is no stalled one.
MOST_COMPUTATIONS = 0.5
NEARLY_ALL = 0.9
# One worker alone is compared with nobody.
MIN_WORKERS = 2


class AllocatorStall(Detector):
    """Irregular delays on forward and backward of few workers, whatever the sequence lengths."""

    cause = "allocator-stall"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if case.parallelism.num_workers < MIN_WORKERS:
            return RuledOut(self.cause, "the only worker has nobody to be compared with", True)
        found = case.ask(stalls)
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
    """[dp, pp], late hosts that stop before most computations and, nearly always, in none."""
    hosts = np.zeros(found.is_stalled.shape, np.bool_)
    for each in case.ask(late_hosts):
        hosts[each.worker] = True
    stops, late = found.stops.counts(case), found.late.counts(case)
    is_regular = late >= MOST_COMPUTATIONS * found.trials
    return np.asarray(hosts & is_regular & (late >= NEARLY_ALL * stops))


def _suspicion(case: Case, found: Stalls, stops: Events) -> Suspicion:
    workers = [(int(dp), int(stage)) for dp, stage in np.argwhere(found.is_stalled)]
    to_blame = case.culprits(workers)
    longer = _of(case.ask(long_ones), found)
    # A first forward that waits in one step after the other is waiting for data.
    loads = waits(case).waits.any()
    later = _of(late_ones(case, lambda late: ~(late.is_first & loads), _is_late), found)
    later = later.where(case.is_usual[later.step])
    is_hit = np.zeros(case.steps.size, np.bool_)
    is_hit[stops.step] = True
    lasts = coming(case.steps, is_hit)
    stop_in = (
        "stops for a while in {} of its"
        if len(to_blame) == 1
        else ("stop for a while in {} of their")
    )
    certain = float(1 - np.exp(max(found.log_chance[found.is_stalled].max() / 4, -50.0)))

    def wording(costed: Costed) -> str:
        return sentence(
            f"{who(to_blame)} {stop_in.format(f'{stops.size:,}')} computations, forward and "
            "backward, whatever their length",
            costed,
        )

    return Suspicion(
        cause=AllocatorStall.cause,
        score=certain,
        confidence=0.95 * certain,
        culprits=to_blame,
        wording=wording,
        repair=repair_of(longer.blames(case, longer.least_s)),
        delays=delays_of(later.blames(case, later.excess_s)),
        onset_step=lasts.onset_step,
        persistence=lasts.persistence,
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


def _of(events: Events, found: Stalls) -> Events:
    return events.where(found.is_stalled[events.dp_rank, events.stage])


def _is_late(late: Delays) -> Floats:
    """Short stops count as well, once it is known who has them."""
    return np.full(late.rows.size, SHORT_TIMES_USUAL * late.usual_s)
