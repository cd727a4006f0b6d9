"""Figures over many jobs: accuracies and errors."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.diagnosis import verdict
from benchmarks.diagnosis.truth import DiagnosisOutcome, StatedFinding

# Confidence from here to the next one; the last bin holds 1.0 too.
BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def figures(outcomes: Sequence[DiagnosisOutcome]) -> dict[str, Any]:
    """All figures that are compared with a bar; null where no job applies."""
    faulty = [each for each in outcomes if not each.is_healthy]
    healthy = [each for each in outcomes if each.is_healthy]
    counted = [each for each in faulty if each.counts]
    single = [each for each in counted if len(each.faults) == 1]
    placed = [each for each in single if each.faults[0].has_place]
    two = [each for each in counted if len(each.faults) > 1]
    stepped = [each for each in single if verdict.wants_onset(each)]
    errors = [error for each in counted for error in verdict.cost_errors(each)]
    return {
        "jobs": len(outcomes),
        "counted_jobs": len(counted),
        "too_small_jobs": len(faulty) - len(counted),
        "single_jobs": len(single),
        "top1_accuracy": share(single, verdict.is_cause_right),
        "placed_jobs": len(placed),
        "culprit_accuracy": share(placed, verdict.is_culprit_right),
        "two_fault_jobs": len(two),
        "both_named": share(two, verdict.are_all_named),
        "healthy_jobs": len(healthy),
        "false_causes": sum(bool(verdict.false_findings(each)) for each in healthy),
        "onset_jobs": len(stepped),
        "onset_within_2": share(stepped, verdict.is_onset_right),
        "false_onsets": sum(each.num_changes > 0 for each in healthy),
        "cost_error_p50": _percentile(errors, 50),
        "cost_error_p95": _percentile(errors, 95),
        "clock_residual_ms": _clock_residual_ms(outcomes),
        "diagnosis_to_analysis": _time_ratio(outcomes),
        "false_causes_beside": sum(bool(verdict.false_findings(each)) for each in faulty),
        "failed_windows": sum(each.num_failed for each in outcomes),
    }


def share(
    outcomes: Sequence[DiagnosisOutcome], is_right: Callable[[DiagnosisOutcome], bool]
) -> float | None:
    """Share of jobs for which it is so; None of no job."""
    return sum(map(is_right, outcomes)) / len(outcomes) if outcomes else None


def per_cause(outcomes: Iterable[DiagnosisOutcome]) -> dict[str, dict[str, Any]]:
    """Precision, recall and number of jobs of every cause that a job had or that was named.

    A finding is right if one of the job's faults has its cause, however small; a fault is missed
    only if it counts. Where several causes are as good, the fault is of the first of them.
    """
    table: dict[str, _Row] = {}
    for outcome in outcomes:
        false = {finding.cause for finding in verdict.false_findings(outcome)}
        for cause in {finding.cause for finding in outcome.findings} | false:
            table.setdefault(cause, _Row()).add_finding(is_right=cause not in false)
        for fault in (fault for fault in outcome.faults if fault.counts):
            row = table.setdefault(fault.answers[0].cause, _Row())
            row.add_fault(is_found=verdict.is_answered(fault, outcome))
    return {cause: table[cause].as_json() for cause in sorted(table)}


def per_kind(outcomes: Sequence[DiagnosisOutcome]) -> dict[str, dict[str, Any]]:
    """The same figures per kind of single fault, to locate the misses."""
    kinds = sorted({each.faults[0].kind for each in outcomes if len(each.faults) == 1})
    return {
        kind: _of_kind([o for o in outcomes if len(o.faults) == 1 and o.faults[0].kind == kind])
        for kind in kinds
    }


def calibration(outcomes: Iterable[DiagnosisOutcome]) -> list[dict[str, Any]]:
    """By confidence bin: number of findings, mean stated confidence, share of right ones."""
    judged = [
        (each, each in verdict.false_findings(o)) for o in outcomes for each in _all_findings(o)
    ]
    rows = []
    for low, high in zip(BINS, (*BINS[1:], np.inf), strict=True):
        inside = [(each, is_false) for each, is_false in judged if low <= each.confidence < high]
        if inside:
            stated = sum(each.confidence for each, _ in inside) / len(inside)
            right = sum(not is_false for _, is_false in inside) / len(inside)
            row = {"from": low, "findings": len(inside), "stated": stated, "right": right}
            rows.append(row)
    return rows


class _Row:
    """One cause's counts."""

    def __init__(self) -> None:
        self._right = self._wrong = self._found = self._jobs = 0

    def add_finding(self, *, is_right: bool) -> None:
        self._right += is_right
        self._wrong += not is_right

    def add_fault(self, *, is_found: bool) -> None:
        self._found += is_found
        self._jobs += 1

    def as_json(self) -> dict[str, Any]:
        named = self._right + self._wrong
        return {
            "precision": self._right / named if named else None,
            "recall": self._found / self._jobs if self._jobs else None,
            "jobs": self._jobs,
            "named": named,
        }


def _of_kind(outcomes: list[DiagnosisOutcome]) -> dict[str, Any]:
    counted = [each for each in outcomes if each.counts]
    stepped = [each for each in counted if verdict.wants_onset(each)]
    errors = [error for each in counted for error in verdict.cost_errors(each)]
    return {
        "jobs": len(counted),
        "too_small_jobs": len(outcomes) - len(counted),
        "top1": share(counted, verdict.is_cause_right),
        "culprit": share(counted, verdict.is_culprit_right),
        "onset": share(stepped, verdict.is_onset_right),
        "cost_error_p50": _percentile(errors, 50),
        "cost_error_p95": _percentile(errors, 95),
        "false_causes_beside": sum(bool(verdict.false_findings(each)) for each in counted),
    }


def _all_findings(outcome: DiagnosisOutcome) -> tuple[StatedFinding, ...]:
    # A healthy job's last window is among its early ones already.
    return outcome.early if outcome.is_healthy else (*outcome.findings, *outcome.early)


def _percentile(values: list[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _clock_residual_ms(outcomes: Iterable[DiagnosisOutcome]) -> float | None:
    known = [each.clock_residual_s for each in outcomes if each.clock_residual_s is not None]
    return 1e3 * max(known) if known else None


def _time_ratio(outcomes: Sequence[DiagnosisOutcome]) -> float | None:
    analysis_s = sum(each.analysis_s for each in outcomes)
    return sum(each.diagnosis_s for each in outcomes) / analysis_s if analysis_s else None
