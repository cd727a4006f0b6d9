"""Diagnosis of a window: causes, culprits, onsets and costs.

Read `diagnosis_of` first, then `_concluded`. Detectors are in app/diagnosis/detectors, one cause a
class.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
from msgspec import structs

from app.diagnosis.absent_workers import doubted_by_absence
from app.diagnosis.calibration import calibrated
from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, names_of, sentence_parts
from app.diagnosis.detectors import all_detectors
from app.diagnosis.detectors.silent_worker import SilentWorker
from app.diagnosis.evidence.fingerprint import arrivals_of, coverage, fingerprint, unexplained_share
from app.diagnosis.evidence.job_changes import job_changes
from app.diagnosis.evidence.late_workers import LateWorker, late_workers, wait_cost
from app.diagnosis.fidelity import (
    MIN_COST,
    fidelity_of,
    with_note,
    with_unexplained,
    withheld_by_fidelity,
)
from app.diagnosis.finding import MIN_SCORE
from app.diagnosis.job_history import History, Suspected, onset_by_earlier_windows
from app.diagnosis.repair import Repair
from app.diagnosis.statistics.persistence import Onset
from app.diagnosis.suspicions import (
    MIN_CULPRIT_COST,
    SuspicionCosts,
    cost_after_other_repairs,
    deny,
    doubted_by_clocks,
    drop_cheap_culprits,
    drop_explained,
    suspicion_costs,
)
from app.diagnosis.unexplained import unexplained_loss
from app.engine.replays import WindowReplay
from app.engine.report import Report
from app.formatting import percent
from app.result import causes
from app.result.arrivals import ArrivalsRecord
from app.result.causes import CAUSES, SILENT_WORKER
from app.result.finding import HIDDEN_COST, OLD_HIDDEN_COST, Finding, RuledOut
from app.result.window_result import Fingerprint, JobChange, Unexplained, WindowResult
from app.result.words import sentence_of
from app.trace.window import Window

DETECTORS = all_detectors(by_arrivals=False)
# Used where the other detectors leave waiting for late ranks unexplained.
ARRIVALS_DETECTORS = all_detectors(by_arrivals=True)

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
        return structs.replace(result, **{name: getattr(self, name) for name in _IN_RESULT})


_IN_RESULT = (
    "findings", "ruled_out", "fingerprint", "changes", "arrivals", "unexplained_share", "coverage",
    "unexplained",
)  # fmt: skip


def diagnose(replay: WindowReplay, report: Report, history: History) -> Diagnosis:
    """Name or rule out every cause."""
    return diagnosis_of(Case(replay, report, history))


def diagnosis_of(case: Case) -> Diagnosis:
    """The same of a case, which keeps all that is computed of it.

    Detectors ask it for evidence. Those that use arrivals alone count only where the others leave
    waiting unexplained.
    """
    suspicions, denied_first = _suspected(case, DETECTORS)
    findings, denied = _concluded(case, suspicions, denied_first)
    late, not_late = _suspected(case, ARRIVALS_DETECTORS)
    late = [suspicion for suspicion in late if not _is_among(suspicion, suspicions)]
    if late and _leaves_waiting(case, findings):
        with_late, denied_with_late = _concluded(case, [*suspicions, *late], denied_first)
        if with_late is None:
            denied += [answer for answer in denied_with_late if answer.cause == causes.LATE_HOST]
        else:
            suspicions, findings, denied = [*suspicions, *late], with_late, denied_with_late
    elif late:
        reason = "the time that others wait for late ranks is explained by other causes"
        not_late += [deny(suspicion, reason) for suspicion in late]
    return _diagnosis(case, findings, [*denied, *not_late], suspicions)


def _is_among(late: Suspicion, suspicions: Sequence[Suspicion]) -> bool:
    """Whether another detector suspects the same cause on the same workers."""
    return any(
        other.cause == late.cause and other.evidence["workers"] == late.evidence["workers"]
        for other in suspicions
    )


def _leaves_waiting(case: Case, findings: tuple[Finding, ...] | None) -> bool:
    if findings is None:
        return True
    share = unexplained_share(case, findings)
    return share is not None and share >= MIN_UNEXPLAINED


Conclusion = tuple[tuple[Finding, ...] | None, list[RuledOut]]


def _concluded(case: Case, suspicions: list[Suspicion], denied: list[RuledOut]) -> Conclusion:
    """From suspicions to findings, most costly first, and causes ruled out: one step a line.

    Where the replay is far from the record, only causes that do not depend on what it leaves out
    are named; findings are None where there is none.
    """
    suspicions, explained = drop_explained(case, suspicions)
    suspicions, doubts = _without_doubted(case, suspicions)
    costs = suspicion_costs(case, suspicions)
    fidelity = fidelity_of(case, costs.blamed_s)
    withheld = withheld_by_fidelity(case, suspicions, costs, fidelity)
    of_record = with_unexplained(costs, fidelity)
    answers = [
        doubt or _judged(case, suspicions, of_record, index) for index, doubt in enumerate(withheld)
    ]
    named = [answer for answer in answers if isinstance(answer, Finding)]
    findings = sorted((with_note(case, finding, fidelity) for finding in named), key=_rank)
    denied = [*denied, *explained, *doubts]
    denied += [answer for answer in answers if isinstance(answer, RuledOut)]
    return None if fidelity.is_low and not findings else tuple(findings), denied


def _without_doubted(
    case: Case, suspicions: Sequence[Suspicion]
) -> tuple[list[Suspicion], list[RuledOut]]:
    """The suspicions that hold, and the reasons against the others, before any is replayed."""
    doubts = [
        doubted_by_absence(case, suspicion) or doubted_by_clocks(case, suspicion)
        for suspicion in suspicions
    ]
    kept = list(compress(suspicions, [doubt is None for doubt in doubts]))
    return kept, [doubt for doubt in doubts if doubt is not None]


def _rank(finding: Finding) -> tuple[bool, float, float, str]:
    """Silent workers, of which all else is unknown, then by cost; unknown costs are 0."""
    is_other = finding.cause != SILENT_WORKER
    return is_other, -(finding.cost or 0.0), -finding.score, finding.cause


def _diagnosis(
    case: Case,
    findings: tuple[Finding, ...] | None,
    answers: Iterable[RuledOut],
    suspicions: Sequence[Suspicion],
) -> Diagnosis:
    named_causes = {finding.cause for finding in findings or ()}
    named = [suspicion for suspicion in suspicions if suspicion.cause in named_causes]
    # Each cause once, without those of findings.
    denied: dict[str, RuledOut] = {}
    for answer in answers:
        denied.setdefault(answer.cause, answer)
    changes = tuple(
        structs.replace(change, culprits=tuple(map(case.with_rank, change.culprits)))
        for change in job_changes(case.extended_history, case.replay.window.hosts, case.parallelism)
    )
    return Diagnosis(
        findings,
        tuple(answer for answer in denied.values() if answer.cause not in named_causes),
        fingerprint(case),
        changes,
        replace(case.new_history, suspected=_suspected_steps(case, suspicions)),
        arrivals=arrivals_of(case),
        unexplained_share=unexplained_share(case, findings or ()),
        coverage=coverage(case),
        unexplained=None if findings is None else unexplained_loss(case, named, findings),
        repairs={
            suspicion.cause: suspicion.repair for suspicion in named if suspicion.repair is not None
        },
    )


def without_steps(window: Window) -> tuple[tuple[Finding, ...] | None, tuple[RuledOut, ...]]:
    """Findings, and causes ruled out, where no step could be replayed.

    Only a silent worker can be named; otherwise findings are None.
    """
    answer = SilentWorker().detect_in(window)
    all_ = dict.fromkeys(detector.cause for detector in (*DETECTORS, *ARRIVALS_DETECTORS))
    others = (cause for cause in all_ if cause != answer.cause)
    no_step = "no step of the window could be replayed"
    ruled_out = [RuledOut(cause, no_step, insufficient=True) for cause in others]
    if isinstance(answer, RuledOut):
        return None, (answer, *ruled_out)
    finding = _finding(answer, answer.onset, answer.confidence, answer.evidence)
    return (finding,), tuple(ruled_out)


def _finding(
    suspicion: Suspicion,
    onset: Onset,
    confidence: float,
    evidence: Mapping[str, Any],
    cost: float | None = None,
    cost_range: tuple[float, float] | None = None,
) -> Finding:
    steps = evidence.get("steps") or ()
    finding = Finding(
        cause=suspicion.cause,
        score=suspicion.score,
        confidence=confidence,
        culprits=suspicion.culprits,
        onset_step=onset.onset_step,
        onset_by_step=int(steps[0]) if steps and onset.onset_step is None else None,
        end_step=onset.end_step,
        persistence=onset.persistence,
        cost=cost,
        cost_range=cost_range,
        evidence=evidence,
        sentence="",
        parts=sentence_parts(suspicion),
        basis=suspicion.basis,
    )
    return structs.replace(finding, sentence=sentence_of(finding))


def _suspected(case: Case, detectors: Sequence[Detector]) -> tuple[list[Suspicion], list[RuledOut]]:
    suspicions, denied = [], []
    for detector in detectors:
        answer = detector.detect(case)
        if isinstance(answer, RuledOut):
            denied.append(answer)
        elif answer.score < MIN_SCORE:
            reason = f"its score of {answer.score:.2f} is below {MIN_SCORE}"
            denied.append(deny(answer, reason))
        else:
            suspicions.append(drop_cheap_culprits(case, answer))
    return suspicions, denied


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
            reason = f"it costs only {percent(max(share, 0.0))} of the job's GPU time"
            return deny(suspicion, reason, cost=share)
        share = max(share, 0.0)
    if cost_range is not None and _is_healthy_wait(suspicion, share, cost_range):
        low, high = (percent(end) for end in cost_range)
        reason = (
            f"the others wait for {names_of(suspicion.culprits)}, which costs {low} to {high} of "
            "the job's GPU time: healthy GPUs differ by as much"
        )
        figures = {"least_cost": cost_range[0], "most_cost": cost_range[1]}
        return deny(suspicion, reason, insufficient=True, **figures)
    evidence = {**_places(case, suspicion), **suspicion.evidence}
    evidence["share_of_loss"] = (
        None if suspicion.is_cost_recorded else _share_of_loss(case, cost, index)
    )
    if later is not None:
        evidence[HIDDEN_COST] = evidence[OLD_HIDDEN_COST] = later
    figure = calibrated(suspicion.cause, suspicion.confidence)
    sure, onset = min(figure, suspicion.max_confidence), _onset(case, suspicion)
    return _finding(suspicion, onset, sure, evidence, share, cost_range)


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
    workers = suspicion.workers
    if suspicion.evidence.get("num_workers", 0) > len(workers):
        return share, None  # too many workers to be listed
    late = [worker for worker in late_workers(case) if worker.worker in workers]
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
    groups = {worker.late.group for worker in late}
    others = (worker for worker in late_workers(case) if worker not in late)
    return any(worker.late.group in groups for worker in others)


def _places(case: Case, suspicion: Suspicion) -> dict[str, Any]:
    """Stages and hosts of the workers in the evidence."""
    workers, of_worker = suspicion.workers, case.replay.window.hosts
    hosts = {of_worker[worker] for worker in workers if worker in of_worker}
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
    given = suspicion.onset
    onset_step = shown.onset_step if given.onset_step is None else given.onset_step
    is_known = badness is not None and np.isfinite(badness[: history.num_before]).any()
    if onset_step is None and not is_known and suspicion.cause != SILENT_WORKER:
        first = next(iter(suspicion.evidence.get("steps", ())), int(case.steps[0]))
        onset_step = onset_by_earlier_windows(history, suspicion.cause, first)
    end_step = shown.end_step if given.end_step is None else given.end_step
    return Onset(onset_step, given.persistence or shown.persistence, end_step)


def _suspected_steps(case: Case, suspicions: Iterable[Suspicion]) -> dict[str, Suspected]:
    """What later windows have to know of the causes that this one shows."""
    newest = int(case.steps[-1])
    suspected: dict[str, Suspected] = {}
    for suspicion in suspicions:
        onset = _onset(case, suspicion)
        last = newest if onset.end_step is None else onset.end_step
        steps = suspicion.evidence.get("steps") or (last,)
        suspected[suspicion.cause] = onset.onset_step, min(last, int(steps[-1]))
    return suspected


def _share_of_loss(case: Case, cost: SuspicionCosts, index: int) -> float | None:
    """(T' - T'_repaired) / (T' - T_ideal); None where nothing is lost."""
    share, lost_s = cost.of(index), cost.blamed_s.mean() - case.report.ideal_s.mean()
    if share is None or lost_s < MIN_LOSS * cost.blamed_s.mean():
        return None
    return float(share * cost.blamed_s.mean() / lost_s)
