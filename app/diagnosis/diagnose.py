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
from app.diagnosis.calibration import calibrated, feed_of
from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, names_of, sentence_parts
from app.diagnosis.detectors import all_detectors
from app.diagnosis.detectors.silent_worker import SilentWorker
from app.diagnosis.evidence.fingerprint import arrivals_of, coverage, fingerprint, unexplained_share
from app.diagnosis.evidence.idle_time import idle_in_steps_s
from app.diagnosis.evidence.job_changes import job_changes
from app.diagnosis.evidence.late_launches import LAUNCHED_LATER_S
from app.diagnosis.evidence.late_workers import LateWorker, WaitCost, late_workers, wait_cost
from app.diagnosis.fidelity import (
    MIN_COST,
    WITHOUT_REPLAY,
    Fidelity,
    fidelity_of,
    with_note,
    with_unexplained,
    withheld_by_fidelity,
    without_replay,
)
from app.diagnosis.finding import MIN_SCORE
from app.diagnosis.first_steps import FirstSteps
from app.diagnosis.job_history import History, Suspected, onset_by_earlier_windows
from app.diagnosis.observations import observations_of
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
from app.diagnosis.uneven_steps import slow_in_uneven_steps
from app.diagnosis.unexplained import unexplained_loss
from app.engine.replays import WindowReplay
from app.engine.report import Report
from app.formatting import ordinal, percent
from app.result import causes
from app.result.arrivals import ArrivalsRecord
from app.result.causes import CAUSES, SILENT_WORKER
from app.result.finding import (
    HIDDEN_COST,
    OLD_HIDDEN_COST,
    Finding,
    ObservationRecord,
    RuledOut,
)
from app.result.window_result import Fingerprint, JobChange, Unexplained, WindowResult
from app.result.words import WAITS_NOT_RECORDED, sentence_of
from app.trace.window import Window

DETECTORS = all_detectors(by_arrivals=False)
# Used where the other detectors leave waiting for late ranks unexplained.
ARRIVALS_DETECTORS = all_detectors(by_arrivals=True)

# Causes that another one hides are named if they cost this after its repair.
MIN_HIDDEN_COST = 0.05
# Unexplained waiting, as a share of the step, from which ARRIVALS_DETECTORS are used.
MIN_UNEXPLAINED = 0.05
# Costs by replay and by waits agree within this share of the step.
MAX_COST_DIFFERENCE = 0.02
# Shares of a smaller loss than this are not given.
MIN_LOSS = 0.02


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings, most costly first, and the causes ruled out.

    `findings` is None where causes are withheld because the replay is too far from the record, or
    no waits are recorded, and no worker is silent. `changes` are those of the extended history,
    `new_history` is what the window adds to it. `arrivals` is that part of the result
    (docs/arrivals.md).
    `unexplained_share` is waiting that no finding explains, `coverage` the time with operations,
    both as shares of the step; None where unknown. `unexplained` is the loss that is left after the
    repairs of all findings; None where causes are withheld. `repairs` are those of the findings
    that can be replayed, by cause; they take only groups of the diagnosed replay. `observations`
    are facts that blame nothing.
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
    observations: tuple[ObservationRecord, ...]
    repairs: Mapping[str, Repair]

    def added_to(self, result: WindowResult) -> WindowResult:
        """The result with what it says about causes."""
        return structs.replace(result, **{name: getattr(self, name) for name in _IN_RESULT})


_IN_RESULT = (
    "findings", "ruled_out", "fingerprint", "changes", "arrivals", "unexplained_share", "coverage",
    "unexplained", "observations",
)  # fmt: skip


def diagnose(
    replay: WindowReplay, report: Report, history: History, first_steps: FirstSteps | None = None
) -> Diagnosis:
    """Name or rule out every cause; `first_steps` are those that the replay leaves out."""
    return diagnosis_of(Case(replay, report, history, first_steps))


def diagnosis_of(case: Case) -> Diagnosis:
    """The same of a case, which keeps all that is computed of it.

    Detectors ask it for evidence. Those that use arrivals alone count only where the others leave
    waiting unexplained.
    """
    suspicions, denied_first = _suspected(case, DETECTORS)
    findings, denied = _concluded(case, suspicions, denied_first)
    late, not_late = _suspected(case, ARRIVALS_DETECTORS)
    late = [suspicion for suspicion in late if not _is_named(suspicion, findings)]
    if late and not _leaves_waiting(case, findings):
        reason = "the time that others wait for late ranks is explained by other causes"
        # Launches tell a late host, whoever waits for it.
        for suspicion in late:
            if LAUNCHED_LATER_S not in suspicion.evidence:
                not_late.append(deny(suspicion, reason))
        late = [suspicion for suspicion in late if LAUNCHED_LATER_S in suspicion.evidence]
    if late:
        with_late, denied_with_late = _concluded(case, [*suspicions, *late], denied_first)
        if with_late is None:
            denied += [answer for answer in denied_with_late if answer.cause == causes.LATE_HOST]
        else:
            suspicions, findings, denied = [*suspicions, *late], with_late, denied_with_late
    return _diagnosis(case, findings, [*denied, *not_late], suspicions)


def _is_named(late: Suspicion, findings: tuple[Finding, ...] | None) -> bool:
    """Whether a finding has the same cause and the same workers."""
    return any(
        finding.cause == late.cause and finding.evidence.get("workers") == late.evidence["workers"]
        for finding in findings or ()
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
    are named, some of them as they stand without it. Findings are None where there is none then, or
    where waits are not recorded.
    """
    suspicions, explained = drop_explained(case, suspicions)
    suspicions, doubts = _without_doubted(case, suspicions)
    costs = suspicion_costs(case, suspicions)
    fidelity = fidelity_of(case, costs.blamed_s)
    withheld = withheld_by_fidelity(case, suspicions, costs, fidelity)
    of_record = with_unexplained(costs, fidelity)
    answers = [
        _judged(case, suspicions, of_record, index)
        if doubt is None
        else _judged_apart(case, suspicion, of_record.of(index), fidelity) or doubt
        for index, (suspicion, doubt) in enumerate(zip(suspicions, withheld, strict=True))
    ]
    named = sorted((answer for answer in answers if isinstance(answer, Finding)), key=_rank)
    findings = [with_note(case, finding, fidelity) for finding in _within_loss(named)]
    denied = [*denied, *explained, *doubts]
    denied += [answer for answer in answers if isinstance(answer, RuledOut)]
    is_withheld = fidelity.is_low or case.replay.lacks_waits
    return None if is_withheld and not findings else tuple(findings), denied


def _within_loss(findings: list[Finding]) -> list[Finding]:
    """The findings, most costly first, with shares of the loss that are no more than all of it.

    A cost is what the repair of one cause alone wins, and two may win the same time: where one of
    them is repaired, the other holds the job up for less. The less costly one has the share left.
    """
    left, within = 1.0, list[Finding]()
    for finding in findings:
        share = finding.evidence.get("share_of_loss")
        if share is not None:
            share = min(share, left)
            left -= max(share, 0.0)
            finding = structs.replace(
                finding, evidence={**finding.evidence, "share_of_loss": share}
            )
        within.append(finding)
    return within


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
        if answer.cause == causes.SLOW_WORKER and case.replay.lacks_waits:
            answer = RuledOut(answer.cause, WAITS_NOT_RECORDED, insufficient=True)
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
        observations=observations_of(case),
        repairs={
            suspicion.cause: suspicion.repair for suspicion in named if suspicion.repair is not None
        },
    )


def without_steps(window: Window) -> tuple[tuple[Finding, ...] | None, tuple[RuledOut, ...]]:
    """Findings, and causes ruled out, where no step could be replayed.

    Only silent workers can be named, and slow ones where dp ranks run different numbers of
    micro-batches; otherwise findings are None.
    """
    no_step = "no step of the window could be replayed"
    detectors = (*DETECTORS, *ARRIVALS_DETECTORS)
    answers: dict[str, RuledOut] = {
        detector.cause: detector.cannot_tell(no_step) for detector in detectors
    }
    findings = []
    silent = SilentWorker().detect_in(window)
    if isinstance(silent, RuledOut):
        answers[SILENT_WORKER] = silent
    else:
        findings.append(_finding(silent, silent.onset, silent.confidence, silent.evidence))
    if (slow := slow_in_uneven_steps(window)) is not None:
        case, answer = slow
        if isinstance(answer, RuledOut):
            answers[causes.SLOW_WORKER] = answer
        else:
            evidence = {**_places(case, answer), **answer.evidence}
            figure = calibrated(answer.cause, answer.confidence, feed_of(window))
            sure = min(figure, answer.max_confidence)
            findings.append(_finding(answer, _onset(case, answer), sure, evidence, answer.cost))
    named = {finding.cause for finding in findings}
    denied = (answer for answer in answers.values() if answer.cause not in named)
    return tuple(findings) or None, tuple(denied)


def _finding(
    suspicion: Suspicion,
    onset: Onset,
    confidence: float,
    evidence: Mapping[str, Any],
    cost: float | None = None,
    cost_range: tuple[float, float] | None = None,
) -> Finding:
    steps = evidence.get("steps") or ()
    if onset.every_steps is not None and evidence.get("every_steps") is None:
        often = f", in every {ordinal(onset.every_steps)} step"
        suspicion = replace(suspicion, fact=suspicion.fact + often)
        evidence = {**evidence, "every_steps": onset.every_steps}
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


def _judged_apart(
    case: Case, suspicion: Suspicion, replayed: float | None, seen: Fidelity
) -> Finding | RuledOut | None:
    """The answer to a withheld suspicion as it stands without the replay; None if it does not."""
    apart = without_replay(case, suspicion, replayed, seen)
    if apart is None:
        return None
    costs = SuspicionCosts(case.report.recorded_s, (None,), idle_in_steps_s(case))
    answer = _judged(case, [apart], costs, 0)
    if isinstance(answer, RuledOut) or answer.cost is None or replayed is None:
        return answer
    if apart.evidence[WITHOUT_REPLAY] != "arrivals" or case.parallelism.pp_size == 1:
        return answer
    # In a pipeline others wait through stages as well, which no single group shows.
    waits = WaitCost(*(answer.cost_range or (answer.cost, answer.cost)))
    share, cost_range = _cost(replayed, waits)
    return structs.replace(answer, cost=share, cost_range=cost_range)


def _judged(
    case: Case, suspicions: Sequence[Suspicion], cost: SuspicionCosts, index: int
) -> Finding | RuledOut:
    suspicion, replayed = suspicions[index], cost.of(index)
    share = suspicion.cost if replayed is None or suspicion.is_cost_recorded else replayed
    waits = _waits(case, suspicion, is_replayed=share is not None)
    share, cost_range = _cost(share, waits)
    later = None
    least = max(MIN_COST, suspicion.min_cost)
    if replayed is None and waits is not None:
        least = max(least, _MOST_HEALTHY_COST)
    is_waited_for = waits is not None and waits.low >= _MOST_HEALTHY_WAIT
    if share is not None and share < least and not is_waited_for:
        later = _cost_after_others(case, suspicions, index)
        if later is None:
            reason = f"it costs only {percent(max(share, 0.0))} of the job's GPU time"
            # Computations that contain the others' waits are as long as those of a late worker.
            hides = case.replay.lacks_waits and CAUSES[suspicion.cause].delays_worker
            if hides:
                reason += f" by the replay, and {WAITS_NOT_RECORDED}"
            return deny(suspicion, reason, insufficient=hides, cost=share)
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
    figure = calibrated(suspicion.cause, suspicion.confidence, feed_of(case.replay.window))
    sure, onset = min(figure, suspicion.max_confidence), _onset(case, suspicion)
    return _finding(suspicion, onset, sure, evidence, share, cost_range)


# Healthy GPUs differ by 1 to 3 %, and all wait for the slowest one: no reason to name it where only
# waits show it.
_MOST_HEALTHY_COST = 0.03
_MOST_HEALTHY_WAIT = 0.05


def _is_healthy_wait(
    suspicion: Suspicion, share: float | None, cost_range: tuple[float, float]
) -> bool:
    """Whether waits for these workers, which no repair confirms, may cost next to nothing."""
    is_small = share is not None and share < _MOST_HEALTHY_WAIT
    return suspicion.repair is None and is_small and cost_range[0] < MIN_CULPRIT_COST


def _waits(case: Case, suspicion: Suspicion, *, is_replayed: bool) -> WaitCost | None:
    """The cost by what others wait for the suspicion's workers, None where that is not known."""
    workers = suspicion.workers
    if suspicion.evidence.get("num_workers", 0) > len(workers):
        return None  # too many workers to be listed
    late = [worker for worker in late_workers(case) if worker.worker in workers]
    is_all_late = {late_worker.worker for late_worker in late} >= set(workers)
    if not CAUSES[suspicion.cause].delays_worker or not is_all_late:
        return None
    has_pauses = suspicion.cause == causes.GC_PAUSE and suspicion.basis == "recorded"
    if has_pauses and not all(worker.is_due_to("gc") for worker in late):
        return None  # the others wait far longer than the pauses take: for something else
    # Joint waits cannot be divided; in a pipeline others wait through stages, which no single group
    # shows.
    if is_replayed and (_is_late_with_others(case, late) or case.parallelism.pp_size > 1):
        return None
    return wait_cost(case, late)


def _cost(
    share: float | None, waits: WaitCost | None
) -> tuple[float | None, tuple[float, float] | None]:
    """The cost by replay, else by waits, and the range of both where they are not one figure."""
    if waits is None:
        return share, None
    of_both = [waits.low, waits.high] if share is None else [share, waits.low, waits.high]
    low, high = min(of_both), max(of_both)
    if high - low <= MAX_COST_DIFFERENCE:
        return high if share is None else share, None
    return (low + high) / 2 if share is None else share, (low, high)


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
    every_steps = given.every_steps or shown.every_steps
    return Onset(onset_step, given.persistence or shown.persistence, end_step, every_steps)


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
    share = cost.of(index)
    lost_s = (cost.blamed_s - cost.idle_s).mean() - case.report.ideal_s.mean()
    if share is None or lost_s < MIN_LOSS * cost.blamed_s.mean():
        return None
    return float(share * cost.blamed_s.mean() / lost_s)
