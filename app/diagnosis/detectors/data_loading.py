"""Root cause: samples come late, so that a step's first forward computation waits for them."""

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.blamed import Blamed, Blames, delays_of
from app.diagnosis.case import Case
from app.diagnosis.comings import coming
from app.diagnosis.detector import Costed, Detector, Suspicion
from app.diagnosis.finding import Culprit, RuledOut
from app.diagnosis.grouping import Worker
from app.diagnosis.only_host import only_host
from app.diagnosis.past import launched_late
from app.diagnosis.waits import MIN_STEPS, Waits, waits
from app.diagnosis.wording import percent, sentence, who

_MOST_LISTED = 64


class DataLoading(Detector):
    """A large launch delay on a step's first forward, of few workers and hosts or of all."""

    cause = "data-loading"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = waits(case)
        if found.waits.any():
            return _suspicion(case, found)
        worst = float((found.delay_s / case.report.recorded_s[:, None, None]).max())
        if case.steps.size < MIN_STEPS and worst > 0.05:
            return RuledOut(
                self.cause,
                f"a first forward computation waits for {percent(worst)} of its step, and fewer "
                f"than {MIN_STEPS} steps cannot tell loading from an evaluation",
                insufficient=True,
                figures={"longest_share": worst},
            )
        return RuledOut(
            self.cause,
            "no worker's first forward computation waits in one step after the other",
            figures={"longest_share": worst},
        )


def _suspicion(case: Case, found: Waits) -> Suspicion:
    to_blame = _culprits(case, found)
    is_hit = np.asarray(found.is_late.any(axis=(1, 2)))
    lasts = coming(case.steps, is_hit)
    delays_s = found.wait_s[found.is_late]
    num_workers = int(found.waits.sum())
    mean_s = float(delays_s.mean())
    certain = 0.98 if found.tells.any() else float(1 - 0.5 ** min(int(is_hit.sum()), 10))

    def wording(costed: Costed) -> str:
        waiting = "waits" if len(to_blame) <= 1 else "wait"
        return sentence(
            f"{who(to_blame)} {waiting} {mean_s:.2f} s for data before the first forward "
            f"computation in {int(is_hit.sum()):,} of {is_hit.size:,} steps",
            costed,
        )

    return Suspicion(
        cause=DataLoading.cause,
        score=certain,
        confidence=0.97 * certain,
        culprits=to_blame,
        wording=wording,
        delays=delays_of(_blames(case, found)),
        course=launched_late(case, _workers(found.waits)),
        onset_step=lasts.onset_step,
        persistence=lasts.persistence,
        evidence={
            "workers": np.argwhere(found.waits)[:_MOST_LISTED].tolist(),
            "num_workers": num_workers,
            "optypes": ["forward-compute"],
            "steps": case.steps[is_hit].tolist(),
            "mean_wait_s": mean_s,
            "longest_wait_s": float(delays_s.max()),
            "told_by_client": bool(found.tells.any()),
        },
    )


def _culprits(case: Case, found: Waits) -> tuple[Culprit, ...]:
    """Nobody if all of the first stage wait: the others wait too, but need not show it."""
    hosts = case.replay.window.hosts
    if found.tells.any():
        everybody = bool(found.tells.all())
        return () if everybody else case.culprits(_workers(found.tells))
    if found.of_everybody:
        host = only_host(case, found)
        return () if host is None else (Culprit(host=host),)
    workers = _workers(found.waits)
    # A later stage waits for its input anyway, and need not show that its host is slow.
    shows = {stage for _, stage in workers}
    able = {worker: host for worker, host in hosts.items() if worker[1] in shows}
    return case.culprits(workers, able)


def _workers(chosen: NDArray[np.bool_]) -> list[Worker]:
    return [(int(dp_rank), int(stage)) for dp_rank, stage in np.argwhere(chosen)]


def _blames(case: Case, found: Waits) -> Blames:
    """The waits of each group of steps."""
    blames = {}
    for group, late in zip(case.groups, case.delays, strict=True):
        first = np.flatnonzero(late.is_first)
        is_late = found.is_late[case.at(group)]  # [steps, dp, pp]
        step, dp_rank, stage = np.nonzero(is_late)
        of_stage = np.full(case.parallelism.pp_size, -1)
        of_stage[late.stage[first]] = first
        at, lane = of_stage[stage], dp_rank * len(group.steps) + step
        blames[group.steps] = Blamed(late.rows[at], lane, found.wait_s[case.at(group)][is_late])
    return blames
