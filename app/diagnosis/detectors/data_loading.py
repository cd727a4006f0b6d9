"""data-loading: the step's first forward computation waits for data.

The client may report the waits (`recorder.data(loader)`), and then those that are far longer than
the others' name the workers. Without reports a first forward that is late step after step does.
"""

from functools import partial

import numpy as np
from typing_extensions import override

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import (
    Detector,
    Suspicion,
    finding_sentence,
    is_plural,
    names_of,
    percent,
    steps_of,
    workers_evidence,
)
from app.diagnosis.evidence.data_waits import (
    LIMITS,
    DataWaits,
    data_waits,
    host_of_first_stage,
    unrecorded_s,
    wait_rows,
)
from app.diagnosis.evidence.interruptions import workers_where
from app.diagnosis.evidence.job_changes import launch_lateness
from app.diagnosis.finding import Worker
from app.diagnosis.statistics.persistence import onset_of_hits
from app.result.finding import Culprit, RuledOut
from app.result.sentence import WAIT, WAITS


class DataLoading(Detector):
    """A large launch delay on the first forward, of few workers and hosts or of all."""

    cause = "data-loading"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = data_waits(case)
        if found.is_late.any():
            return _suspicion(case, found)
        worst = float((found.delay_s / case.report.recorded_s[:, None, None]).max())
        if found.is_annotated:
            reason = "the client reports waits for data, but these hardly delay the first forward"
            return self.denied(f"{reason} computations of steps", longest_share=worst)
        if case.steps.size < LIMITS.min_steps and worst > LIMITS.min_odd_share:
            return self.cannot_tell(
                f"a first forward computation waits for {percent(worst)} of its step, and fewer "
                f"than {LIMITS.min_steps} steps cannot tell loading from an evaluation",
                longest_share=worst,
            )
        between_s = unrecorded_s(case)
        before_s = between_s + found.delay_s[:, :, 0].min(axis=1)
        odd = before_s > found.least_s
        share = float(before_s[odd].sum() / (case.report.recorded_s + between_s).sum())
        if odd.sum() >= LIMITS.min_steps and share >= LIMITS.min_odd_share:
            return self.cannot_tell(
                f"{int(odd.sum()):,} of {case.steps.size:,} steps begin late on all workers, which "
                f"takes {percent(share)} of the time: waits for data, evaluations or checkpoints, "
                "none of which was reported",
                longest_share=worst,
                late_share=share,
            )
        return self.denied(
            "no worker's first forward computation begins late step after step",
            longest_share=worst,
        )


def _suspicion(case: Case, found: DataWaits) -> Suspicion:
    culprits, is_late = _culprits(case, found), found.is_late
    is_hit = np.asarray(is_late.any(axis=(1, 2)))
    onset = onset_of_hits(case.steps, is_hit)
    workers = workers_where(np.asarray(is_late.any(axis=0)))
    # Later stages show only what outlasts the arrival of their input.
    mean_s = max(
        float(found.wait_s[..., stage][is_late[..., stage]].mean())
        for stage in np.flatnonzero(is_late.any(axis=(0, 1)))
    )
    score = 0.98 if found.is_annotated else float(1 - 0.5 ** min(int(is_hit.sum()), 10))
    wait = WAIT if found.wanders or is_plural(culprits) else WAITS
    who = (
        f"{len(workers):,} different workers, one or another in each step,"
        if found.wanders
        else names_of(culprits)
    )
    fact = (
        f"{who} {wait} {formatting.seconds(mean_s)} for data before the first forward computation "
        f"{steps_of(int(is_hit.sum()), is_hit.size)}"
    )
    return Suspicion(
        cause=DataLoading.cause,
        score=score,
        confidence=0.97 * score,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        delays=wait_rows(case, found).delays(case),
        badness=launch_lateness(case, workers),
        onset_step=onset.onset_step,
        end_step=onset.end_step,
        persistence="rotating" if found.wanders else onset.persistence,
        basis="recorded" if found.is_annotated else "concluded",
        evidence={
            **workers_evidence(workers),
            "optypes": ["forward-compute"],
            "steps": case.steps[is_hit].tolist(),
            "mean_wait_s": mean_s,
            "longest_wait_s": float(found.wait_s[is_late].max()),
            "reported_by_client": found.is_annotated,
        },
    )


def _culprits(case: Case, found: DataWaits) -> tuple[Culprit, ...]:
    """Empty if all of the first stage wait: later stages may wait without showing it."""
    workers, hosts = workers_where(found.waits), case.replay.window.hosts
    if found.of_all:
        host = (
            _host_of_all(case, found, workers)
            if found.is_annotated
            else host_of_first_stage(case, found)
        )
        return () if host is None else (case.with_rank(Culprit(host=host)),)
    if found.is_annotated:
        return case.culprits(workers)
    # Later stages wait for their input and may hide a slow host: only stages that show waits count.
    shows = {stage for _, stage in workers}
    able = {worker: host for worker, host in hosts.items() if worker[1] in shows}
    return case.culprits(workers, able)


def _host_of_all(case: Case, found: DataWaits, workers: list[Worker]) -> str | None:
    """The host that has every loader, where the job has other hosts as well."""
    hosts = case.replay.window.hosts
    loading = {hosts.get(worker) for worker in workers}
    host = loading.pop()
    if found.wanders or loading or {*hosts.values()} == {host}:
        return None
    return host
