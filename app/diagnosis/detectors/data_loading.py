"""data-loading: the step's first forward computation waits for data.

The client may report the waits (`recorder.data(loader)`), and then those that are far longer than
the others' name the workers. Without reports a first forward that is late step after step does.
"""

import numpy as np
from numpy.typing import NDArray
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
    percent,
    steps_of,
)
from app.diagnosis.evidence.data_waits import (
    MIN_STEPS,
    DataWaits,
    data_waits,
    host_of_first_stage,
    unrecorded_s,
)
from app.diagnosis.evidence.job_changes import launch_lateness
from app.diagnosis.finding import Worker
from app.diagnosis.repair import BlamedByGroup, BlamedOps, delays_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.result.finding import Culprit, RuledOut
from app.result.sentence import WAIT, WAITS

_MAX_LISTED = 64
# Late begins of few steps, which may be evaluations, are mentioned from this share of the time.
_MIN_ODD_SHARE = 0.05


class DataLoading(Detector):
    """A large launch delay on the first forward, of few workers and hosts or of all."""

    cause = "data-loading"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = case.cached(data_waits)
        if found.is_late.any():
            return _suspicion(case, found)
        worst = float((found.delay_s / case.report.recorded_s[:, None, None]).max())
        figures = {"longest_share": worst}
        if found.is_annotated:
            reason = "the client reports waits for data, but these hardly delay the first forward"
            return RuledOut(self.cause, f"{reason} computations of steps", figures=figures)
        if case.steps.size < MIN_STEPS and worst > 0.05:
            return RuledOut(
                self.cause,
                f"a first forward computation waits for {percent(worst)} of its step, and fewer "
                f"than {MIN_STEPS} steps cannot tell loading from an evaluation",
                insufficient=True,
                figures=figures,
            )
        before_s = unrecorded_s(case) + found.delay_s[:, :, 0].min(axis=1)
        odd = before_s > found.least_s
        of_s = case.report.recorded_s + unrecorded_s(case)
        share = float(before_s[odd].sum() / of_s.sum())
        if odd.sum() >= MIN_STEPS and share >= _MIN_ODD_SHARE:
            return RuledOut(
                self.cause,
                f"{int(odd.sum()):,} of {case.steps.size:,} steps begin late on all workers, which "
                f"takes {percent(share)} of the time: waits for data, evaluations or checkpoints, "
                "none of which was reported",
                insufficient=True,
                figures={**figures, "late_share": share},
            )
        return RuledOut(
            self.cause,
            "no worker's first forward computation begins late step after step",
            figures=figures,
        )


def _suspicion(case: Case, found: DataWaits) -> Suspicion:
    culprits = _culprits(case, found)
    is_hit = np.asarray(found.is_late.any(axis=(1, 2)))
    onset = onset_of_hits(case.steps, is_hit)
    delays_s = found.wait_s[found.is_late]
    waits = np.asarray(found.is_late.any(axis=0))
    # Later stages show only what outlasts the arrival of their input.
    mean_s = max(
        float(found.wait_s[..., stage][found.is_late[..., stage]].mean())
        for stage in np.flatnonzero(found.is_late.any(axis=(0, 1)))
    )
    score = 0.98 if found.is_annotated else float(1 - 0.5 ** min(int(is_hit.sum()), 10))
    who = _who(found, culprits)
    in_steps = steps_of(int(is_hit.sum()), is_hit.size)

    def wording(costs: CostFigures) -> str:
        return finding_sentence(
            f"{who} {formatting.seconds(mean_s)} for data before the first forward computation "
            f"{in_steps}",
            costs,
        )

    return Suspicion(
        cause=DataLoading.cause,
        score=score,
        confidence=0.97 * score,
        culprits=culprits,
        wording=wording,
        delays=delays_repair(_delays_by_group(case, found)),
        badness=launch_lateness(case, _workers(waits)),
        onset_step=onset.onset_step,
        end_step=onset.end_step,
        persistence="rotating" if found.wanders else onset.persistence,
        basis="recorded" if found.is_annotated else "concluded",
        evidence={
            "workers": np.argwhere(waits)[:_MAX_LISTED].tolist(),
            "num_workers": int(waits.sum()),
            "optypes": ["forward-compute"],
            "steps": case.steps[is_hit].tolist(),
            "mean_wait_s": mean_s,
            "longest_wait_s": float(delays_s.max()),
            "reported_by_client": found.is_annotated,
        },
    )


def _who(found: DataWaits, culprits: tuple[Culprit, ...]) -> str:
    if found.wanders:
        num_workers = int(found.is_late.any(axis=0).sum())
        return f"{num_workers:,} different workers, one or another in each step, {WAIT}"
    return f"{names_of(culprits)} {WAIT if is_plural(culprits) else WAITS}"


def _culprits(case: Case, found: DataWaits) -> tuple[Culprit, ...]:
    """Empty if all of the first stage wait: later stages may wait without showing it."""
    hosts = case.replay.window.hosts
    if found.is_annotated:
        return _host_of_all(case, found) if found.of_all else case.culprits(_workers(found.waits))
    if found.of_all:
        host = host_of_first_stage(case, found)
        return () if host is None else (case.with_rank(Culprit(host=host)),)
    workers = _workers(found.waits)
    # Later stages wait for their input and may hide a slow host: only stages that show waits count.
    shows = {stage for _, stage in workers}
    able = {worker: host for worker, host in hosts.items() if worker[1] in shows}
    return case.culprits(workers, able)


def _host_of_all(case: Case, found: DataWaits) -> tuple[Culprit, ...]:
    """The host that has every loader, where the job has other hosts as well."""
    hosts = case.replay.window.hosts
    loading = {hosts.get(worker) for worker in _workers(found.waits)}
    host = loading.pop()
    if found.wanders or loading or host is None or {*hosts.values()} == {host}:
        return ()
    return (case.with_rank(Culprit(host=host)),)


def _workers(chosen: NDArray[np.bool_]) -> list[Worker]:
    return [(int(dp_rank), int(stage)) for dp_rank, stage in np.argwhere(chosen)]


def _delays_by_group(case: Case, found: DataWaits) -> BlamedByGroup:
    """The waits of each group of steps."""
    by_group = {}
    for group, late in zip(case.groups, case.delays, strict=True):
        first = np.flatnonzero(late.is_first)
        wait_s = found.wait_s[group.positions]  # [steps, dp, pp]
        step, dp_rank, stage = np.nonzero(wait_s)
        of_stage = np.full(case.parallelism.pp_size, -1)
        of_stage[late.stage[first]] = first
        at, lane = of_stage[stage], dp_rank * len(group.steps) + step
        by_group[group.steps] = BlamedOps(late.rows[at], lane, wait_s[step, dp_rank, stage])
    return by_group
