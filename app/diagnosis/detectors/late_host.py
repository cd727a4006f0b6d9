"""late-host: a host launches late, though its GPU computes as fast as its peers.

Reasons are Python between operations, garbage collection, data waits or a busy CPU. It shows as
ranks that are late themselves (docs/arrivals.md) without longer computations.
"""

from functools import partial

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    finding_sentence,
    is_plural,
    names_of,
    percent,
)
from app.diagnosis.evidence.data_waits import data_waits
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.interruptions import (
    ComputationEvents,
    annotated_launches,
    annotated_pauses,
)
from app.diagnosis.evidence.job_changes import launch_lateness
from app.diagnosis.evidence.late_workers import (
    DelayKind,
    LateWorker,
    arrivals_evidence,
    gpu_culprit,
    late_hosts,
)
from app.diagnosis.evidence.outliers import launch_delays_s
from app.diagnosis.repair import BlamedByGroup, BlamedOps, delays_repair, durations_repair
from app.result.finding import Culprit, RuledOut
from app.result.sentence import ARE, IS, TAKE, verb
from app.trace.window import Floats

# Reasons in `late_because`, and in the sentence.
LATE_BECAUSE: dict[DelayKind, str] = {
    "host": "unknown host work",
    "gc": "gc",
    "data-wait": "data-wait",
}
_WORDS: dict[DelayKind, str] = {
    "host": "work between operations that is not recorded",
    "gc": "garbage collection",
    "data-wait": "waits for data",
}
_MAX_LISTED = 64
_CONFIDENCE = 0.9


class LateHost(Detector):
    """Workers that others wait for, though they compute no longer than their peers."""

    cause = "late-host"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = case.cached(late_hosts)
        # What data-loading and gc-pause find is left to them, if there are other late hosts.
        loading = case.cached(data_waits).waits if found else None
        others = [
            each
            for each in found
            if each.kind != "gc"
            and (loading is None or each.kind != "data-wait" or not loading[each.worker])
        ]
        found = others or found
        if case.replay.arrivals is None:
            return RuledOut(
                self.cause,
                "no collective was recorded by several ranks, so that none can be seen to be late",
                insufficient=True,
            )
        if not found:
            return RuledOut(
                self.cause,
                "no rank that computes as its peers do is late to collectives in most steps",
                figures={"largest_share": case.replay.arrivals.largest_share},
            )
        return _suspicion(case, found, float(case.report.recorded_s.mean()))


_LAUNCHES, _LAUNCH = verb("launches", "launched"), verb("launch", "launched")


def _suspicion(case: Case, found: list[LateWorker], step_s: float) -> Suspicion:
    """One suspicion for all late hosts, most waited for first."""
    workers = list(dict.fromkeys(each.worker for each in found))
    culprits = _culprits(case, found)
    worst, kinds = found[0], list(dict.fromkeys(each.kind for each in found))
    share = worst.late.waited_for_s / step_s
    is_, its = (ARE, "their") if is_plural(culprits) else (IS, "its")
    host = f"{its} host {_LAUNCHES}" if len(culprits) == 1 else f"their hosts {_LAUNCH}"
    fact = (
        f"{names_of(culprits)} {is_} late to {percent(worst.late.late_share)} of {its} "
        f"collectives, though {its} computations {TAKE} no longer than {its} peers': {host} late, "
        f"because of {' and '.join(_WORDS[kind] for kind in kinds)}"
    )
    paused = [each.worker for each in found if each.kind == "gc"]

    return Suspicion(
        cause=LateHost.cause,
        score=_CONFIDENCE,
        confidence=_CONFIDENCE,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        repair=durations_repair(_pauses(case, paused)) if paused else None,
        delays=delays_repair(_late_launches(case, workers)),
        badness=launch_lateness(case, workers),
        persistence="chronic",
        evidence={
            "workers": [list(worker) for worker in workers[:_MAX_LISTED]],
            "num_workers": len(workers),
            "late_because": LATE_BECAUSE[worst.kind],
            "steps": case.steps.tolist(),
            **arrivals_evidence(worst, share),
        },
    )


def _culprits(case: Case, found: list[LateWorker]) -> tuple[Culprit, ...]:
    """Workers or hosts; GPUs inside a worker separately."""
    if not any(each.is_inside for each in found):
        return case.culprits(each.worker for each in found)
    named = [
        gpu_culprit(each) if each.is_inside else case.culprits([each.worker])[0] for each in found
    ]
    return tuple({each.rank: each for each in named}.values())


def _late_launches(case: Case, workers: list[tuple[int, int]]) -> BlamedByGroup:
    """Launch delays of their computations above their peers' median, without known pauses."""
    by_group = {}
    pauses = annotated_launches(case, "gc-pause")
    for number, group in enumerate(case.groups):
        paused = pauses.where(pauses.group == number)
        parts = [_of_worker(group, worker, workers, paused) for worker in workers]
        by_group[group.steps] = BlamedOps(
            *(np.concatenate(each) for each in zip(*parts, strict=True))
        )
    return by_group


def _of_worker(
    group: Features,
    worker: tuple[int, int],
    workers: list[tuple[int, int]],
    paused: ComputationEvents,
) -> tuple[np.ndarray, np.ndarray, Floats]:
    """Rows, lanes and seconds of one worker's late launches."""
    replayer, (dp_rank, stage) = group.replayer, worker
    rows = group.compute_rows
    rows = rows[replayer.template.stage[rows] == stage]
    num_steps = replayer.grid.num_steps
    late_s = launch_delays_s(replayer, rows)
    here = paused.where(paused.stage == stage)
    late_s[np.searchsorted(rows, here.row), here.lane] -= here.excess_s
    late_s = late_s.reshape(rows.size, -1, num_steps)
    is_peer = np.ones(replayer.dp_size, np.bool_)
    is_peer[[each for each, its_stage in workers if its_stage == stage]] = False
    usual_s = np.median(late_s[:, is_peer], axis=1) if is_peer.any() else 0.0
    seconds = np.maximum(0.0, late_s[:, dp_rank] - usual_s)
    row = np.repeat(rows, num_steps)
    lane = np.tile(dp_rank * num_steps + np.arange(num_steps), rows.size)
    return row, lane, seconds.ravel()


def _pauses(case: Case, workers: list[tuple[int, int]]) -> BlamedByGroup:
    """Their computations without garbage collection."""
    pauses = annotated_pauses(case)
    mine = np.zeros(pauses.size, np.bool_)
    for dp_rank, stage in workers:
        mine |= (pauses.dp_rank == dp_rank) & (pauses.stage == stage)
    chosen = pauses.where(mine)
    return chosen.blamed_ops(case, chosen.least_s)
