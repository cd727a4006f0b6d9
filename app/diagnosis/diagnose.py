"""What is wrong with a window's steps, with who, since when, and what it costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.changes import Happening, happenings
from app.diagnosis.cost import Costs, cost_once_others_are_mended, costs
from app.diagnosis.course import Lasting, lasting
from app.diagnosis.detector import Costed, Detector, Suspicion
from app.diagnosis.detectors.silent_worker import silent_worker
from app.diagnosis.doubt import doubted
from app.diagnosis.finding import MIN_SCORE, Finding, RuledOut
from app.diagnosis.fingerprint import Fingerprint, fingerprint
from app.diagnosis.history import History
from app.diagnosis.late_workers import LateWorker, late_workers, wait_cost
from app.diagnosis.registry import BY_ARRIVALS, DETECTORS
from app.diagnosis.settle import settle
from app.diagnosis.unexplained import arrivals_block, coverage, unexplained_share
from app.diagnosis.wording import percent
from app.engine.metrics import MAX_DISCREPANCY, discrepancy
from app.engine.replays import WindowReplay
from app.engine.report import Report
from app.trace.window import Window

SILENT = "silent-worker"
LATE_HOST = "late-host"
# A cause that costs less is not worth waking anybody.
MIN_COST = 0.02
# One that is hidden by another has to be worth more: nothing is lost to it yet.
MIN_COST_OF_HIDDEN = 0.05
# Of the step, waiting for late ranks that no cause explains: from here on arrivals name one.
MIN_UNEXPLAINED = 0.05
# Replay and waits that differ by no more than this share of the step say the same.
COSTS_AGREE = 0.03
# Causes of workers that are late by their own doing.
_OF_LATE_WORKERS = ("slow-worker", "late-host", "gc-pause", "data-loading")
# Where the loss that a replay sees is less than this share, shares of it say nothing.
MIN_LOSS = 0.02


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, most costly first, and what was looked at and not found.

    `findings` is None where causes are withheld, since the replay is too far from the record, and
    no worker is silent.
    `changes` are those of the whole course, `recent` is what the window adds to the history.
    `arrivals` is their block of the result (docs/arrivals.md). `unexplained_share` is the share of
    the step that is waiting which no finding explains, `coverage` the share that operations cover;
    None where these are not known.
    """

    findings: tuple[Finding, ...] | None
    ruled_out: tuple[RuledOut, ...]
    fingerprint: Fingerprint
    changes: tuple[Happening, ...]
    recent: History
    arrivals: dict[str, Any] | None
    unexplained_share: float | None
    coverage: float | None

    def as_json(self) -> dict[str, Any]:
        """The blocks of the result that are about causes."""
        found = self.findings
        return {
            "findings": None if found is None else [each.as_json() for each in found],
            "ruled_out": [each.as_json() for each in self.ruled_out],
            "fingerprint": self.fingerprint.as_json(),
            "changes": [each.as_json() for each in self.changes],
            "arrivals": self.arrivals,
            "unexplained_share": self.unexplained_share,
            "coverage": self.coverage,
        }


def diagnose(replay: WindowReplay, report: Report, history: History) -> Diagnosis:
    """Every cause, either found or ruled out.

    Arrivals alone are asked where the other evidence leaves waiting for late ranks unexplained.
    """
    case = Case(replay, report, history)
    suspicions, ruled_out = _suspected(case, DETECTORS)
    findings, ruled_out_then = _concluded(case, suspicions, ruled_out)
    late, not_late = _suspected(case, BY_ARRIVALS)
    late = [each for each in late if not _is_among(each, suspicions)]
    if late and _leaves_waiting(case, findings):
        with_late, ruled_out_with = _concluded(case, [*suspicions, *late], ruled_out)
        if with_late is not None:
            return _diagnosis(case, with_late, _but_found([*ruled_out_with, *not_late], with_late))
        ruled_out_then += [each for each in ruled_out_with if each.cause == LATE_HOST]
    elif late:
        reason = "what the others wait for late ranks is explained by other causes"
        not_late += [RuledOut(each.cause, reason, score=each.score) for each in late]
    return _diagnosis(case, findings, _but_found([*ruled_out_then, *not_late], findings or ()))


def _is_among(late: Suspicion, suspicions: Sequence[Suspicion]) -> bool:
    """Whether the same cause is suspected of the same workers by other evidence."""
    return any(
        each.cause == late.cause and each.evidence["workers"] == late.evidence["workers"]
        for each in suspicions
    )


def _leaves_waiting(case: Case, findings: tuple[Finding, ...] | None) -> bool:
    if findings is None:
        return True
    share = unexplained_share(case, findings)
    return share is not None and share >= MIN_UNEXPLAINED


def _but_found(ruled_out: Sequence[RuledOut], findings: Sequence[Finding]) -> Iterable[RuledOut]:
    """Each cause once, and none that was found."""
    seen = {each.cause for each in findings}
    for each in ruled_out:
        if each.cause not in seen:
            seen.add(each.cause)
            yield each


Conclusion = tuple[tuple[Finding, ...] | None, list[RuledOut]]


def _concluded(case: Case, suspicions: list[Suspicion], ruled_out: list[RuledOut]) -> Conclusion:
    """Findings, most costly first, and causes ruled out; None where causes are withheld."""
    suspicions, explained = settle(case, suspicions)
    ruled_out = [*ruled_out, *explained]
    doubts = [doubted(case, each) for each in suspicions]
    suspicions = [each for each, doubt in zip(suspicions, doubts, strict=True) if doubt is None]
    ruled_out += [doubt for doubt in doubts if doubt is not None]
    cost = costs(case, suspicions)
    usual = case.usual_steps
    between_s = case.report.between_s[usual]
    blamed_s = cost.blamed_s[usual]
    # What lies between steps is launch delay, which a suspicion may have put back already.
    least_s = np.maximum(blamed_s, np.minimum(blamed_s + between_s, case.report.recorded_s[usual]))
    away = min(
        discrepancy(blamed_s, case.report.recorded_s[usual]),
        discrepancy(least_s, case.report.recorded_s[usual]),
    )
    if away > MAX_DISCREPANCY:
        return _all_but_silence(case, suspicions, ruled_out, cost, away)
    findings = []
    for index in range(len(suspicions)):
        answer = _judged(case, suspicions, cost, index)
        if isinstance(answer, Finding):
            findings.append(answer)
        else:
            ruled_out.append(answer)
    return _in_order(findings), ruled_out


def _all_but_silence(
    case: Case,
    suspicions: Sequence[Suspicion],
    ruled_out: Sequence[RuledOut],
    cost: Costs,
    away: float,
) -> Conclusion:
    """Causes are withheld, but that somebody does not report is no matter of times."""
    silent = [
        _judged(case, suspicions, cost, index)
        for index, each in enumerate(suspicions)
        if each.cause == SILENT
    ]
    findings = tuple(each for each in silent if isinstance(each, Finding))
    withheld = [each for each in suspicions if each.cause != SILENT or not findings]
    return findings or None, list(_withheld([*withheld, *ruled_out], away))


def _diagnosis(
    case: Case, findings: tuple[Finding, ...] | None, ruled_out: Iterable[RuledOut]
) -> Diagnosis:
    changes = happenings(case.course, case.replay.window.hosts, case.parallelism)
    return Diagnosis(
        findings,
        tuple(ruled_out),
        fingerprint(case),
        changes,
        case.recent,
        arrivals=arrivals_block(case),
        unexplained_share=unexplained_share(case, findings or ()),
        coverage=coverage(case),
    )


def without_steps(window: Window) -> dict[str, Any]:
    """The blocks of the result that are about causes, where no step could be replayed.

    All that can be told is who does not report. Nothing is said of a window that nobody is known
    to be missing from.
    """
    answer = silent_worker(window)
    all_ = dict.fromkeys(detector.cause for detector in (*DETECTORS, *BY_ARRIVALS))
    others = (cause for cause in all_ if cause != answer.cause)
    no_step = "no step of the window could be replayed"
    ruled_out = [RuledOut(cause, no_step, insufficient=True) for cause in others]
    if isinstance(answer, RuledOut):
        return {"findings": None, "ruled_out": [each.as_json() for each in (answer, *ruled_out)]}
    found = Finding(
        cause=answer.cause,
        score=answer.score,
        confidence=answer.confidence,
        culprits=answer.culprits,
        onset_step=answer.onset_step,
        persistence=answer.persistence,
        cost=None,
        evidence=answer.evidence,
        sentence=answer.wording(Costed(None, answer.onset_step, answer.persistence)),
    )
    return {"findings": [found.as_json()], "ruled_out": [each.as_json() for each in ruled_out]}


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
            suspicions.append(answer)
    return suspicions, ruled_out


def _withheld(causes: Iterable[Suspicion | RuledOut], away: float) -> Iterable[RuledOut]:
    reason = (
        f"simulated and recorded step time differ by {percent(away)}, late launches that could "
        f"be explained left out, and above {percent(MAX_DISCREPANCY)} nobody is blamed"
    )
    figures = {"discrepancy": away}
    return (RuledOut(each.cause, reason, True, each.score, figures) for each in causes)


def _judged(
    case: Case, suspicions: Sequence[Suspicion], cost: Costs, index: int
) -> Finding | RuledOut:
    suspicion = suspicions[index]
    share, cost_range = _cost(case, suspicion, cost.of(index))
    later = None
    least = max(MIN_COST, suspicion.min_cost)
    if share is not None and share < least and cost_range is None:
        later = _once_others_are_mended(case, suspicions, index)
        if later is None:
            return RuledOut(
                suspicion.cause,
                f"it costs only {percent(max(share, 0.0))} of the job's GPU time",
                score=suspicion.score,
                figures={"cost": share},
            )
        share = max(share, 0.0)
    lasts = _lasting(case, suspicion)
    costed = Costed(share, lasts.onset_step, lasts.persistence, later, cost_range)
    return Finding(
        cause=suspicion.cause,
        score=suspicion.score,
        confidence=suspicion.confidence,
        culprits=suspicion.culprits,
        onset_step=costed.onset_step,
        persistence=costed.persistence,
        cost=share,
        evidence={
            **_places(case, suspicion),
            **suspicion.evidence,
            "share_of_loss": _share_of_loss(case, cost, index),
            **({} if later is None else {"cost_once_others_are_mended": later}),
        },
        sentence=suspicion.wording(costed),
        cost_range=cost_range,
    )


def _cost(
    case: Case, suspicion: Suspicion, replayed: float | None
) -> tuple[float | None, tuple[float, float] | None]:
    """The cost as the replay has it, and the range where what the others waited disagrees.

    Waits are compared where they are for the very workers that the suspicion is about.
    """
    share = suspicion.cost if replayed is None else replayed
    workers = [tuple(worker) for worker in suspicion.evidence.get("workers", ())]
    if suspicion.evidence.get("num_workers", 0) > len(workers):
        return share, None  # too many to be listed, and so to be compared
    late = [each for each in case.ask(late_workers) if each.worker in workers]
    if suspicion.cause not in _OF_LATE_WORKERS or len({each.worker for each in late}) < len(
        set(workers)
    ):
        return share, None
    if share is not None and _is_late_with_others(case, late):
        return share, None  # what was waited for both says nothing of the one
    # In a pipeline others wait for a culprit through stages, which no one group shows.
    waits = wait_cost(case, late) if share is None or case.parallelism.pp_size == 1 else None
    if waits is None:
        return share, None
    if share is None:
        if waits.high - waits.low <= COSTS_AGREE:
            return waits.high, None
        return (waits.low + waits.high) / 2, (waits.low, waits.high)
    if waits.low - COSTS_AGREE <= share <= waits.high + COSTS_AGREE:
        return share, None
    return share, (min(share, waits.low), max(share, waits.high))


def _is_late_with_others(case: Case, late: Sequence[LateWorker]) -> bool:
    """Whether ranks of other suspicions are late in the same groups."""
    groups = {each.late.group for each in late}
    return any(each.late.group in groups for each in case.ask(late_workers) if each not in late)


def _places(case: Case, suspicion: Suspicion) -> dict[str, Any]:
    """Stages and hosts of the workers that carry the evidence."""
    workers = [(dp_rank, stage) for dp_rank, stage in suspicion.evidence.get("workers", ())]
    hosts = {host for worker in workers if (host := case.host(*worker)) is not None}
    return {"stages": sorted({stage for _, stage in workers}), "hosts": sorted(hosts)}


def _once_others_are_mended(
    case: Case, suspicions: Sequence[Suspicion], index: int
) -> float | None:
    """What it will cost, where it costs little only because something else is as bad."""
    if len(suspicions) < 2:
        return None
    share = cost_once_others_are_mended(case, suspicions, index)
    return share if share is not None and share >= MIN_COST_OF_HIDDEN else None


def _lasting(case: Case, suspicion: Suspicion) -> Lasting:
    """What the detector says itself, or else what its course shows."""
    said = Lasting(suspicion.onset_step, suspicion.persistence)
    if suspicion.course is None:
        return said
    shown = lasting(case.course, suspicion.course)
    return Lasting(
        shown.onset_step if said.onset_step is None else said.onset_step,
        said.persistence or shown.persistence,
    )


def _share_of_loss(case: Case, cost: Costs, index: int) -> float | None:
    """(T' - T'_repaired) / (T' - T_ideal); None where nothing is lost."""
    share, lost_s = cost.of(index), cost.blamed_s.mean() - case.report.ideal_s.mean()
    if share is None or lost_s < MIN_LOSS * cost.blamed_s.mean():
        return None
    return float(share * cost.blamed_s.mean() / lost_s)


def _in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Most costly first; one of unknown cost has no loss to show for it."""
    return tuple(sorted(findings, key=lambda each: (-(each.cost or 0.0), -each.score, each.cause)))
