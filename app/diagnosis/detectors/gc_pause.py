"""Root cause: Python stops a worker to collect garbage, in the middle of a forward computation."""

from math import lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.at_once import period_before
from app.diagnosis.blamed import repair_of
from app.diagnosis.case import Case
from app.diagnosis.comings import coming
from app.diagnosis.detector import Costed, Detector, Suspicion
from app.diagnosis.events import Events
from app.diagnosis.finding import Culprit, Persistence, RuledOut
from app.diagnosis.garbage import Pauses, pauses, together
from app.diagnosis.grouping import Worker
from app.diagnosis.wording import sentence, who
from app.trace.window import Ints

# A few workers are to blame if it is as unlikely that only they have all pauses.
BY_CHANCE = 0.17
FEW = 0.34
# Of the pauses: in steps where nearly all workers have one, if they are planned.
MOST = 0.8
# Where the client, or an operation of this very name, tells of the pauses.
CERTAIN = 0.97

_MOST_LISTED = 64
# Of the pauses of the worker that has most.
STRAY = 0.1


class GcPause(Detector):
    """Lone long forwards, of different workers in different steps; or of all at once, planned."""

    cause = "gc-pause"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = pauses(case)
        if found.everything.size:
            return _suspicion(case, found)
        if found.always:
            return RuledOut(
                self.cause,
                "the same forward computation is longer on all workers in most steps: that may be "
                "what it computes, and no client tells of a pause",
                insufficient=True,
            )
        return RuledOut(
            self.cause,
            "no forward computations are longer by themselves, their backwards as usual",
        )


def _suspicion(case: Case, found: Pauses) -> Suspicion:
    everything, sure = found.everything, found.sure
    every_steps = _period(case, sure)
    to_blame = () if every_steps is not None else _culprits(case, sure)
    is_hit = _steps(case, sure)
    lasts = coming(case.steps, is_hit)
    persistence: Persistence = lasts.persistence
    if every_steps is None and not to_blame and persistence == "chronic":
        persistence = "rotating"
    certain = CERTAIN if everything.size > found.lone.size else 1 - found.chance
    fact = _fact(case, sure, every_steps, to_blame)

    def wording(costed: Costed) -> str:
        return sentence(fact, costed)

    return Suspicion(
        cause=GcPause.cause,
        score=certain,
        confidence=0.97 * certain,
        culprits=to_blame,
        wording=wording,
        repair=repair_of(everything.blames(case, everything.least_s)),
        onset_step=lasts.onset_step,
        persistence=persistence,
        evidence=_evidence(case, found, every_steps),
    )


def _period(case: Case, sure: Events) -> int | None:
    """Every how many steps all collect at once; 0 if that is not known, None if they never do."""
    shared = together(case, sure)
    if np.isin(sure.step, np.flatnonzero(shared)).sum() < MOST * sure.size:
        return None
    at = np.flatnonzero(shared)
    if at.size == 1:
        return period_before(case, int(at[0])) or 0
    return int(np.gcd.reduce(np.diff(case.steps[at]))) if at.size else 0


def _culprits(case: Case, sure: Events) -> tuple[Culprit, ...]:
    """The few workers that have all pauses; nobody where they go round, or may."""
    counts = sure.counts(case)
    # A stray pause of another worker hides nobody who pauses again and again.
    paused = np.argwhere(counts > STRAY * counts.max(initial=0))
    if len(paused) > max(1.0, FEW * counts.size) or sure.size < 2 or counts.size < 2:
        return ()
    log_chance = _log_comb(counts.size, len(paused))
    log_chance += sure.size * np.log(len(paused) / counts.size)
    if log_chance > np.log(BY_CHANCE):
        return ()
    return case.culprits(_workers(paused))


def _log_comb(of: int, chosen: int) -> float:
    """Logarithm of how many ways there are to choose so many of so many."""
    return lgamma(of + 1) - lgamma(chosen + 1) - lgamma(of - chosen + 1)


def _workers(places: Ints) -> list[Worker]:
    return [(int(dp_rank), int(stage)) for dp_rank, stage in places]


def _steps(case: Case, events: Events) -> NDArray[np.bool_]:
    """[steps], those with a pause."""
    is_hit = np.zeros(case.steps.size, np.bool_)
    is_hit[events.step] = True
    return is_hit


def _fact(case: Case, sure: Events, every_steps: int | None, to_blame: tuple[Culprit, ...]) -> str:
    mean_s = f"for {float(sure.excess_s.mean()):.2f} s"
    if every_steps is not None:
        often = {0: "at once", 1: "in every step"}.get(every_steps, f"every {every_steps} steps")
        return f"Every worker stops to collect garbage {often}, {mean_s}"
    num_paused = int((sure.counts(case) > 0).sum())
    subject = f"{who(to_blame)} stops" if len(to_blame) == 1 else f"{who(to_blame)} stop"
    if not to_blame:
        subject = f"{num_paused:,} different workers stop" if num_paused > 1 else "A worker stops"
    num_steps = int(_steps(case, sure).sum())
    return (
        f"{subject} in a forward computation {mean_s}, as Python does to collect garbage: "
        f"{sure.size:,} times in {num_steps:,} of {case.steps.size:,} steps"
    )


def _evidence(case: Case, found: Pauses, every_steps: int | None) -> dict[str, Any]:
    sure = found.sure
    paused = _workers(np.argwhere(sure.counts(case) > 0))
    in_forward = found.noted.size + found.lone.size
    return {
        "workers": [list(worker) for worker in paused[:_MOST_LISTED]],
        "num_workers": len(paused),
        "optypes": ["gc"] * bool(found.in_op.size) + ["forward-compute"] * bool(in_forward),
        "steps": case.steps[_steps(case, sure)].tolist(),
        "pauses": sure.size,
        "told_by_client": found.noted.size,
        "mean_pause_s": float(sure.excess_s.mean()),
        "longest_pause_s": float(sure.excess_s.max()),
        "planned": every_steps is not None,
        "every_steps": every_steps or None,
    }
