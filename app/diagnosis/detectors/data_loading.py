"""data-loading: the step's first forward computation waits for data.

The client may report the waits (`recorder.data(loader)`), and then those that are far longer than
the others' name the workers. Without reports first forwards of a few workers do that are late step
after step while others have begun; where all are idle, nothing says that they wait for data.
"""

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    is_plural,
    names_of,
    steps_of,
    workers_evidence,
)
from app.diagnosis.evidence.data_waits import LIMITS as WAIT_LIMITS
from app.diagnosis.evidence.data_waits import (
    DataWaits,
    data_waits,
    wait_rows,
)
from app.diagnosis.evidence.idle_time import idle_share
from app.diagnosis.evidence.interruptions import workers_where
from app.diagnosis.evidence.job_changes import launch_lateness
from app.diagnosis.finding import Worker
from app.diagnosis.statistics.persistence import Onset, onset_of_hits
from app.formatting import percent, seconds
from app.result.finding import Culprit, RuledOut
from app.result.words import BEGIN, BEGINS, WAIT, WAITS


@dataclass(frozen=True, slots=True)
class LoadingLimits:
    """Scores of data-loading. All were chosen."""

    # Where the client reports the waits.
    recorded_score: float = 0.98
    # Without reports each late step, up to so many, takes this share of the doubt that is left: a
    # late step may be chance, and many in a row are none.
    doubt_per_step: float = 0.5
    max_counted_steps: int = 10
    # The confidence over the score,
    confidence_of_score: float = 0.97
    # and the highest without reports: the jobs that were calibrated have few other late hosts.
    max_confidence_concluded: float = 0.8


LIMITS = LoadingLimits()
# Stops of a loader in more steps are counted, not listed.
_MAX_STEPS = 4


class DataLoading(Detector):
    """A large launch delay on the first forward, of few workers and hosts or of all."""

    cause = "data-loading"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        loading = data_waits(case)
        if loading.is_late.any():
            return _suspicion(case, loading)
        worst = float((loading.delay_s / case.report.recorded_s[:, None, None]).max())
        if loading.is_annotated:
            reason = "the client reports waits for data, but these hardly delay the first forward"
            return self.denied(f"{reason} computations of steps", longest_share=worst)
        if case.steps.size < WAIT_LIMITS.min_steps and worst > WAIT_LIMITS.min_odd_share:
            return self.cannot_tell(
                f"a first forward computation waits for {percent(worst)} of its step, and fewer "
                f"than {WAIT_LIMITS.min_steps} steps cannot tell loading from an evaluation",
                longest_share=worst,
            )
        share = idle_share(case)
        if share >= WAIT_LIMITS.min_share_of_all:
            return self.cannot_tell(
                f"all workers are idle for {percent(share)} of the time before their first "
                "computation: waits for data, evaluations or checkpoints, none of which was "
                "reported",
                longest_share=worst,
                idle_share=share,
            )
        return self.denied(
            "no worker's first forward computation begins late step after step",
            longest_share=worst,
        )


def _suspicion(case: Case, loading: DataWaits) -> Suspicion:
    culprits, is_late = _culprits(case, loading), loading.is_late
    is_hit = np.asarray(is_late.any(axis=(1, 2)))
    onset = onset_of_hits(case.steps, is_hit)
    workers = workers_where(np.asarray(is_late.any(axis=0)))
    num_late = int(is_hit.sum())
    # Later stages show only what outlasts the arrival of their input.
    mean_s = max(
        float(loading.wait_s[..., stage][is_late[..., stage]].mean())
        for stage in np.flatnonzero(is_late.any(axis=(0, 1)))
    )
    score = (
        LIMITS.recorded_score
        if loading.is_annotated
        else 1 - LIMITS.doubt_per_step ** min(num_late, LIMITS.max_counted_steps)
    )
    often, late_steps = steps_of(num_late, is_hit.size), case.steps[is_hit].tolist()
    # Of the loader, each an event of its own.
    is_stop = num_late <= _MAX_STEPS and mean_s >= float(np.median(case.report.recorded_s))
    if is_stop:
        listed = " and ".join(", ".join(map(str, late_steps)).rsplit(", ", 1))
        often = f"in {'step' if num_late == 1 else 'steps'} {listed}"
        onset = Onset(late_steps[0], "transient", late_steps[-1])
    return Suspicion(
        cause=DataLoading.cause,
        score=score,
        confidence=LIMITS.confidence_of_score * score,
        max_confidence=1.0 if loading.is_annotated else LIMITS.max_confidence_concluded,
        culprits=culprits,
        fact=f"{_what(loading, culprits, mean_s)} {often}",
        note="" if loading.is_annotated else NOT_RECORDED,
        delays=wait_rows(case, loading).delays(case),
        badness=launch_lateness(case, workers),
        onset=replace(onset, persistence="rotating") if loading.wanders else onset,
        onset_form=None if is_stop else "since",
        basis="recorded" if loading.is_annotated else "concluded",
        evidence={
            **workers_evidence(workers),
            "optypes": ["forward-compute"],
            "steps": late_steps,
            "mean_wait_s": mean_s,
            "longest_wait_s": float(loading.wait_s[is_late].max()),
            "reported_by_client": loading.is_annotated,
        },
    )


NOT_RECORDED = "No wait for data was recorded: another delay of the host looks the same"


def _what(loading: DataWaits, culprits: tuple[Culprit, ...], mean_s: float) -> str:
    mean = seconds(mean_s)
    if not loading.is_annotated:
        begin, its = (BEGIN, "their") if is_plural(culprits) else (BEGINS, "its")
        return f"{names_of(culprits)} {begin} {its} first forward computation {mean} late"
    subject = f"{names_of(culprits)} {WAIT if is_plural(culprits) else WAITS}"
    if loading.wanders:
        num_workers = int(loading.is_late.any(axis=0).sum())
        subject = f"{num_workers:,} different workers, one or another in each step, {WAIT}"
    return f"{subject} {mean} for data before the first forward computation"


def _culprits(case: Case, loading: DataWaits) -> tuple[Culprit, ...]:
    """Empty if all of the first stage wait: later stages may wait without showing it."""
    workers, hosts = workers_where(loading.waits), case.replay.window.hosts
    if loading.of_all:
        host = _host_of_all(case, loading, workers)
        return () if host is None else (case.with_rank(Culprit(host=host)),)
    if loading.is_annotated:
        return case.culprits(workers)
    # Later stages wait for their input and may hide a slow host: only stages that show waits count.
    shows = {stage for _, stage in workers}
    able = {worker: host for worker, host in hosts.items() if worker[1] in shows}
    return case.culprits(workers, able)


def _host_of_all(case: Case, loading: DataWaits, workers: list[Worker]) -> str | None:
    """The host that has every loader, where the job has other hosts as well."""
    hosts = case.replay.window.hosts
    loaders = {hosts.get(worker) for worker in workers}
    is_one = len(loaders) == 1 and not loading.wanders and {*hosts.values()} != loaders
    return loaders.pop() if is_one else None
