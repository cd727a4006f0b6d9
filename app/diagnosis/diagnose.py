"""Diagnosis of a window: causes, culprits, onsets and costs.

Read `diagnose` first. To add a detector, add a file to app/diagnosis/detectors and a line to
`DETECTORS`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import structs

from app.diagnosis.absent_workers import doubted_by_absence
from app.diagnosis.calibration import calibrated
from app.diagnosis.case import Case
from app.diagnosis.culprit_costs import MIN_CULPRIT_COST, drop_cheap_culprits
from app.diagnosis.detector import (
    CostFigures,
    Detector,
    Suspicion,
    names_of,
    percent,
    sentence_and_parts,
)
from app.diagnosis.detectors.allocator_stall import AllocatorStall
from app.diagnosis.detectors.checkpoint_stall import CheckpointStall
from app.diagnosis.detectors.cpu_contention import CpuContention
from app.diagnosis.detectors.data_loading import DataLoading
from app.diagnosis.detectors.expert_imbalance import ExpertImbalance
from app.diagnosis.detectors.gc_pause import GcPause
from app.diagnosis.detectors.job_stop import JobStop
from app.diagnosis.detectors.late_host import LateHost
from app.diagnosis.detectors.late_slow_worker import SlowWorkerByArrivals
from app.diagnosis.detectors.link import FlappingLink, SlowLink
from app.diagnosis.detectors.sequence_imbalance import SequenceImbalance
from app.diagnosis.detectors.silent_worker import SilentWorker, silent_worker
from app.diagnosis.detectors.slow_worker import SlowWorker
from app.diagnosis.detectors.stage_imbalance import StageImbalance
from app.diagnosis.detectors.uniform_slowdown import UniformSlowdown
from app.diagnosis.evidence.fingerprint import (
    arrivals_of,
    coverage,
    fingerprint,
    unexplained_share,
)
from app.diagnosis.evidence.job_changes import job_changes
from app.diagnosis.evidence.late_workers import LateWorker, late_workers, wait_cost
from app.diagnosis.fidelity import (
    MIN_COST,
    Fidelity,
    as_independent,
    doubted_by_fidelity,
    fidelity_of,
    with_unexplained,
)
from app.diagnosis.finding import MIN_SCORE
from app.diagnosis.job_history import (
    History,
    Suspected,
    onset_by_earlier_windows,
)
from app.diagnosis.repair import Repair
from app.diagnosis.statistics.persistence import Onset
from app.diagnosis.suspicions import (
    SuspicionCosts,
    cost_after_other_repairs,
    doubted_by_clocks,
    drop_explained,
    suspicion_costs,
)
from app.diagnosis.unexplained import unexplained_loss
from app.engine.replays import WindowReplay
from app.engine.report import Report
from app.result import causes
from app.result.arrivals import ArrivalsRecord
from app.result.causes import CAUSES, SILENT_WORKER
from app.result.finding import Finding, RuledOut
from app.result.window_result import Fingerprint, JobChange, Unexplained, WindowResult
from app.trace.window import Window

DETECTORS: tuple[Detector, ...] = (
    SlowWorker(),
    StageImbalance(),
    SequenceImbalance(),
    ExpertImbalance(),
    GcPause(),
    SlowLink(),
    FlappingLink(),
    DataLoading(),
    AllocatorStall(),
    CpuContention(),
    CheckpointStall(),
    JobStop(),
    SilentWorker(),
    UniformSlowdown(),
)

# Used where the other detectors leave waiting for late ranks unexplained.
ARRIVALS_DETECTORS: tuple[Detector, ...] = (LateHost(), SlowWorkerByArrivals())


# Causes that another one hides are named if they cost this after its repair.
MIN_HIDDEN_COST = 0.05
# Unexplained waiting, as a share of the step, from which ARRIVALS_DETECTORS are used.
MIN_UNEXPLAINED = 0.05
# Costs by replay and by waits agree within this share of the step.
MAX_COST_DIFFERENCE = 0.03
# Shares of a smaller loss than this are not given.
MIN_LOSS = 0.02


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings, most costly first, and the causes ruled out.

    `findings` is None where causes are withheld because the replay is too far from the record, and
    no worker is silent. `changes` are those of the extended history, `new_history` is what the
    window adds to it. `arrivals` is that part of the result (docs/arrivals.md).
    `unexplained_share` is waiting that no finding explains, `coverage` the time with operations,
    both as shares of the step; None where unknown. `unexplained` is the loss that is left after the
    repairs of all findings; None where causes are withheld. `repairs` are those of the findings
    that can be replayed, by cause; they take only groups of the diagnosed replay.
    """

    findings: tuple[Finding, ...] | None
    ruled_out: tuple[RuledOut, ...]
    fingerprint: Fingerprint
    changes: tuple[JobChange, ...]
    new_history: History
    arrivals: ArrivalsRecord | None
    unexplained_share: float | None
    coverage: float | None
    unexplained: Unexplained | None
    repairs: Mapping[str, Repair]

    def added_to(self, result: WindowResult) -> WindowResult:
        """The result with what it says about causes."""
        return structs.replace(
            result,
            findings=self.findings,
            ruled_out=self.ruled_out,
            fingerprint=self.fingerprint,
            changes=self.changes,
            arrivals=self.arrivals,
            unexplained_share=self.unexplained_share,
            coverage=self.coverage,
            unexplained=self.unexplained,
        )


def diagnose(replay: WindowReplay, report: Report, history: History) -> Diagnosis:
    """Find or rule out every cause.

    Detectors that use arrivals alone count only where the others leave waiting unexplained.
    """
    case = Case(replay, report, history)
    suspicions, ruled_out = _suspected(case, DETECTORS)
    findings, ruled_out_then = _concluded(case, suspicions, ruled_out)
    late, not_late = _suspected(case, ARRIVALS_DETECTORS)
    late = [each for each in late if not _is_among(each, suspicions)]
    if late and _leaves_waiting(case, findings):
        with_late, ruled_out_with = _concluded(case, [*suspicions, *late], ruled_out)
        if with_late is not None:
            left = _without_found([*ruled_out_with, *not_late], with_late)
            return _diagnosis(case, with_late, left, [*suspicions, *late])
        ruled_out_then += [denied for denied in ruled_out_with if denied.cause == causes.LATE_HOST]
    elif late:
        reason = "the time that others wait for late ranks is explained by other causes"
        not_late += [RuledOut(each.cause, reason, score=each.score) for each in late]
    left = _without_found([*ruled_out_then, *not_late], findings or ())
    return _diagnosis(case, findings, left, suspicions)


def _is_among(late: Suspicion, suspicions: Sequence[Suspicion]) -> bool:
    """Whether another detector suspects the same cause on the same workers."""
    return any(
        each.cause == late.cause and each.evidence["workers"] == late.evidence["workers"]
        for each in suspicions
    )


def _leaves_waiting(case: Case, findings: tuple[Finding, ...] | None) -> bool:
    if findings is None:
        return True
    share = unexplained_share(case, findings)
    return share is not None and share >= MIN_UNEXPLAINED


def _without_found(
    ruled_out: Sequence[RuledOut], findings: Sequence[Finding]
) -> Iterable[RuledOut]:
    """Each cause once, without those found."""
    seen = {each.cause for each in findings}
    for each in ruled_out:
        if each.cause not in seen:
            seen.add(each.cause)
            yield each


Conclusion = tuple[tuple[Finding, ...] | None, list[RuledOut]]


def _concluded(case: Case, suspicions: list[Suspicion], ruled_out: list[RuledOut]) -> Conclusion:
    """Findings, most costly first (None where withheld), and causes ruled out."""
    suspicions, explained = drop_explained(case, suspicions)
    ruled_out = [*ruled_out, *explained]
    doubts = [
        doubted_by_absence(case, each) or doubted_by_clocks(case, each) for each in suspicions
    ]
    suspicions = [each for each, doubt in zip(suspicions, doubts, strict=True) if doubt is None]
    ruled_out += [doubt for doubt in doubts if doubt is not None]
    cost = suspicion_costs(case, suspicions)
    seen = fidelity_of(case, cost.blamed_s)
    if seen.is_low:
        return _confirmed(case, suspicions, ruled_out, cost, seen)
    findings = []
    for index in range(len(suspicions)):
        answer = _judged(case, suspicions, cost, index)
        if isinstance(answer, Finding):
            findings.append(answer)
        else:
            ruled_out.append(answer)
    return _by_cost(findings), ruled_out


def _confirmed(
    case: Case,
    suspicions: Sequence[Suspicion],
    ruled_out: Sequence[RuledOut],
    cost: SuspicionCosts,
    seen: Fidelity,
) -> Conclusion:
    """Causes that do not depend on what the replay leaves out; None where there is none."""
    findings, left, of_record = [], list(ruled_out), with_unexplained(cost, seen)
    for index, each in enumerate(suspicions):
        is_silent = each.cause == SILENT_WORKER
        doubt = None if is_silent else doubted_by_fidelity(case, each, cost, index, seen)
        answer = doubt or _judged(case, suspicions, of_record, index)
        if isinstance(answer, RuledOut):
            left.append(answer)
        else:
            recorded_s = case.report.recorded_s
            findings.append(answer if is_silent else as_independent(answer, seen, recorded_s))
    return _by_cost(findings) or None, left


def _diagnosis(
    case: Case,
    findings: tuple[Finding, ...] | None,
    ruled_out: Iterable[RuledOut],
    suspicions: Iterable[Suspicion],
) -> Diagnosis:
    suspicions = list(suspicions)
    found = {each.cause for each in findings or ()}
    named = [each for each in suspicions if each.cause in found]
    changes = tuple(
        structs.replace(each, culprits=tuple(map(case.with_rank, each.culprits)))
        for each in job_changes(case.extended_history, case.replay.window.hosts, case.parallelism)
    )
    return Diagnosis(
        findings,
        tuple(ruled_out),
        fingerprint(case),
        changes,
        replace(case.new_history, suspected=_suspected_steps(case, suspicions)),
        arrivals=arrivals_of(case),
        unexplained_share=unexplained_share(case, findings or ()),
        coverage=coverage(case),
        unexplained=None if findings is None else unexplained_loss(case, named, findings),
        repairs={each.cause: each.repair for each in named if each.repair is not None},
    )


def without_steps(window: Window) -> tuple[tuple[Finding, ...] | None, tuple[RuledOut, ...]]:
    """Findings, and causes ruled out, where no step could be replayed.

    Only a silent worker can be found; otherwise findings are None.
    """
    answer = silent_worker(window)
    all_ = dict.fromkeys(detector.cause for detector in (*DETECTORS, *ARRIVALS_DETECTORS))
    others = (cause for cause in all_ if cause != answer.cause)
    no_step = "no step of the window could be replayed"
    ruled_out = [RuledOut(cause, no_step, insufficient=True) for cause in others]
    if isinstance(answer, RuledOut):
        return None, (answer, *ruled_out)
    sentence, parts = sentence_and_parts(
        answer, CostFigures(None, answer.onset_step, answer.persistence)
    )
    found = Finding(
        cause=answer.cause,
        score=answer.score,
        confidence=answer.confidence,
        culprits=answer.culprits,
        onset_step=answer.onset_step,
        end_step=None,
        persistence=answer.persistence,
        cost=None,
        cost_range=None,
        evidence=answer.evidence,
        sentence=sentence,
        parts=parts,
        basis=answer.basis,
    )
    return (found,), tuple(ruled_out)


def _suspected(case: Case, detectors: Sequence[Detector]) -> tuple[list[Suspicion], list[RuledOut]]:
    suspicions, ruled_out = [], []
    for detector in detectors:
        answer = detector.detect(case)
        if isinstance(answer, RuledOut):
            ruled_out.append(answer)
        elif answer.score < MIN_SCORE:
            reason = f"its score of {answer.score:.2f} is below {MIN_SCORE}"
            ruled_out.append(RuledOut(answer.cause, reason, score=answer.score))
        else:
            suspicions.append(drop_cheap_culprits(case, answer))
    return suspicions, ruled_out


def _judged(
    case: Case, suspicions: Sequence[Suspicion], cost: SuspicionCosts, index: int
) -> Finding | RuledOut:
    suspicion = suspicions[index]
    share, cost_range = _cost(case, suspicion, cost.of(index))
    later = None
    least = max(MIN_COST, suspicion.min_cost)
    if share is not None and share < least and cost_range is None:
        later = _cost_after_others(case, suspicions, index)
        if later is None:
            return RuledOut(
                suspicion.cause,
                f"it costs only {percent(max(share, 0.0))} of the job's GPU time",
                score=suspicion.score,
                figures={"cost": share},
            )
        share = max(share, 0.0)
    if cost_range is not None and _is_healthy_wait(suspicion, share, cost_range):
        low, high = (percent(each) for each in cost_range)
        return RuledOut(
            suspicion.cause,
            f"the others wait for {names_of(suspicion.culprits)}, which costs {low} to {high} of "
            "the job's GPU time: healthy GPUs differ by as much",
            insufficient=True,
            score=suspicion.score,
            figures={"least_cost": cost_range[0], "most_cost": cost_range[1]},
        )
    onset = _onset(case, suspicion)
    costs = CostFigures(
        share, onset.onset_step, onset.persistence, later, cost_range, onset.end_step
    )
    sentence, parts = sentence_and_parts(suspicion, costs)
    return Finding(
        cause=suspicion.cause,
        score=suspicion.score,
        confidence=min(calibrated(suspicion.cause, suspicion.confidence), suspicion.max_confidence),
        culprits=suspicion.culprits,
        onset_step=costs.onset_step,
        persistence=costs.persistence,
        cost=share,
        evidence={
            **_places(case, suspicion),
            **suspicion.evidence,
            "share_of_loss": None
            if suspicion.is_cost_recorded
            else _share_of_loss(case, cost, index),
            **({} if later is None else {"cost_once_others_are_mended": later}),
        },
        sentence=sentence,
        parts=parts,
        cost_range=cost_range,
        end_step=costs.end_step,
        basis=suspicion.basis,
    )


# Healthy GPUs differ by 1 to 3 %, and all wait for the slowest one.
_MOST_HEALTHY_WAIT = 0.05


def _is_healthy_wait(
    suspicion: Suspicion, share: float | None, cost_range: tuple[float, float]
) -> bool:
    """Whether waits for these workers, which no repair confirms, may cost next to nothing."""
    is_small = share is not None and share < _MOST_HEALTHY_WAIT
    return suspicion.repair is None and is_small and cost_range[0] < MIN_CULPRIT_COST


def _cost(
    case: Case, suspicion: Suspicion, replayed: float | None
) -> tuple[float | None, tuple[float, float] | None]:
    """The cost by replay, and a range where the waits for the suspicion's workers disagree."""
    share = suspicion.cost if replayed is None or suspicion.is_cost_recorded else replayed
    workers = [tuple(worker) for worker in suspicion.evidence.get("workers", ())]
    if suspicion.evidence.get("num_workers", 0) > len(workers):
        return share, None  # too many workers to be listed
    late = [each for each in case.cached(late_workers) if each.worker in workers]
    is_all_late = {late_worker.worker for late_worker in late} >= set(workers)
    if not CAUSES[suspicion.cause].delays_worker or not is_all_late:
        return share, None
    if share is not None and _is_late_with_others(case, late):
        return share, None  # joint waits cannot be divided
    # In a pipeline others wait through stages, which no single group shows.
    waits = wait_cost(case, late) if share is None or case.parallelism.pp_size == 1 else None
    if waits is None:
        return share, None
    if share is None:
        if waits.high - waits.low <= MAX_COST_DIFFERENCE:
            return waits.high, None
        return (waits.low + waits.high) / 2, (waits.low, waits.high)
    if waits.low - MAX_COST_DIFFERENCE <= share <= waits.high + MAX_COST_DIFFERENCE:
        return share, None
    return share, (min(share, waits.low), max(share, waits.high))


def _is_late_with_others(case: Case, late: Sequence[LateWorker]) -> bool:
    """Whether other ranks are late in the same groups."""
    groups = {each.late.group for each in late}
    return any(each.late.group in groups for each in case.cached(late_workers) if each not in late)


def _places(case: Case, suspicion: Suspicion) -> dict[str, Any]:
    """Stages and hosts of the workers in the evidence."""
    workers = [(dp_rank, stage) for dp_rank, stage in suspicion.evidence.get("workers", ())]
    of_workers = case.replay.window.hosts
    hosts = {of_workers[worker] for worker in workers if worker in of_workers}
    return {"stages": sorted({stage for _, stage in workers}), "hosts": sorted(hosts)}


def _cost_after_others(case: Case, suspicions: Sequence[Suspicion], index: int) -> float | None:
    """Its cost after the other repairs, if these hide a cost above MIN_HIDDEN_COST now."""
    if len(suspicions) < 2:
        return None
    share = cost_after_other_repairs(case, suspicions, index)
    return share if share is not None and share >= MIN_HIDDEN_COST else None


def _onset(case: Case, suspicion: Suspicion) -> Onset:
    """Onset and persistence given by the detector, else read from its badness."""
    history, badness = case.extended_history, suspicion.badness
    shown = Onset(None, None) if badness is None else case.onset_of(badness)
    onset_step = shown.onset_step if suspicion.onset_step is None else suspicion.onset_step
    is_known = badness is not None and np.isfinite(badness[: history.num_before]).any()
    if onset_step is None and not is_known and suspicion.cause != SILENT_WORKER:
        first = next(iter(suspicion.evidence.get("steps", ())), int(case.steps[0]))
        onset_step = onset_by_earlier_windows(history, suspicion.cause, first)
    end_step = shown.end_step if suspicion.end_step is None else suspicion.end_step
    return Onset(onset_step, suspicion.persistence or shown.persistence, end_step)


def _suspected_steps(case: Case, suspicions: Iterable[Suspicion]) -> dict[str, Suspected]:
    """What later windows have to know of the causes that this one shows."""
    newest = int(case.steps[-1])
    found: dict[str, Suspected] = {}
    for each in suspicions:
        onset = _onset(case, each)
        last = newest if onset.end_step is None else onset.end_step
        steps = each.evidence.get("steps") or (last,)
        found[each.cause] = onset.onset_step, min(last, int(steps[-1]))
    return found


def _share_of_loss(case: Case, cost: SuspicionCosts, index: int) -> float | None:
    """(T' - T'_repaired) / (T' - T_ideal); None where nothing is lost."""
    share, lost_s = cost.of(index), cost.blamed_s.mean() - case.report.ideal_s.mean()
    if share is None or lost_s < MIN_LOSS * cost.blamed_s.mean():
        return None
    return float(share * cost.blamed_s.mean() / lost_s)


def _by_cost(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Silent workers, of which all else is unknown, then most costly first; unknown costs are 0."""
    return tuple(
        sorted(
            findings,
            key=lambda each: (
                each.cause != SILENT_WORKER,
                -(each.cost or 0.0),
                -each.score,
                each.cause,
            ),
        )
    )
