"""Whether the diagnosis of one job is right, and a list of misses with their job numbers."""

from collections.abc import Iterable
from typing import Any

from benchmarks.diagnosis.truth import DiagnosisOutcome, StatedFinding, TrueFault, Workers

ONSET_WITHIN = 2  # recorded steps
MIN_STEP_CHANGE = 0.10  # smaller ones are not held against the diagnosis
LARGE_COST_ERROR = 5.0  # points


def finding_of(fault: TrueFault, outcome: DiagnosisOutcome) -> StatedFinding | None:
    """The first finding that names the fault's cause."""
    return next((finding for finding in outcome.findings if finding.has_cause_of(fault)), None)


def is_rightly_withheld(fault: TrueFault, outcome: DiagnosisOutcome) -> bool:
    """Whether the data cannot tell the cause, and the diagnosis reports that."""
    return bool(fault.or_withheld) and outcome.withheld.issuperset(fault.or_withheld)


def is_answered(fault: TrueFault, outcome: DiagnosisOutcome) -> bool:
    """Whether some finding names the fault's cause, or none need to."""
    return finding_of(fault, outcome) is not None or is_rightly_withheld(fault, outcome)


def is_cause_right(outcome: DiagnosisOutcome) -> bool:
    """Whether the first finding names the cause of the job's only fault."""
    (fault,) = outcome.faults
    if not outcome.findings:
        return is_rightly_withheld(fault, outcome)
    return outcome.findings[0].has_cause_of(fault)


def is_culprit_right(outcome: DiagnosisOutcome) -> bool:
    """Whether the first finding has exactly the culprits of the only fault."""
    (fault,) = outcome.faults
    if not outcome.findings:
        return is_rightly_withheld(fault, outcome)
    return outcome.findings[0].has_culprits_of(fault)


def are_all_named(outcome: DiagnosisOutcome) -> bool:
    """Whether every fault is answered."""
    return all(is_answered(fault, outcome) for fault in outcome.faults)


def wants_onset(outcome: DiagnosisOutcome) -> bool:
    """Whether the job has one fault, with which its steps became longer at once and for good."""
    if len(outcome.faults) != 1 or not outcome.counts:
        return False
    (fault,) = outcome.faults
    return fault.onset is not None and fault.step_change >= MIN_STEP_CHANGE


def is_onset_right(outcome: DiagnosisOutcome) -> bool:
    """Whether the finding of the only fault has its onset, within `ONSET_WITHIN` steps."""
    (fault,) = outcome.faults
    finding = finding_of(fault, outcome)
    if finding is None or finding.onset is None or fault.onset is None:
        return False
    return abs(finding.onset - fault.onset) <= ONSET_WITHIN


def cost_errors(outcome: DiagnosisOutcome) -> list[float]:
    """Percentage points between true and stated cost of each named fault."""
    pairs = [(fault.cost, finding_of(fault, outcome)) for fault in outcome.faults]
    return [
        100 * abs(finding.cost - cost)
        for cost, finding in pairs
        if cost is not None and finding is not None and finding.cost is not None
    ]


def false_findings(outcome: DiagnosisOutcome) -> list[StatedFinding]:
    """False findings, those before the first fault included."""
    true = frozenset[str]().union(*(fault.causes for fault in outcome.faults))
    return [*(finding for finding in outcome.findings if finding.cause not in true), *outcome.early]


def wrongs(outcome: DiagnosisOutcome) -> list[str]:
    """Names of the wrong aspects; empty where all is right."""
    found: list[str] = []
    if not outcome.counts:
        return found
    if len(outcome.faults) == 1:
        found += [] if is_cause_right(outcome) else ["cause"]
        found += (
            ["culprit"] if outcome.faults[0].has_place and not is_culprit_right(outcome) else []
        )
    elif not are_all_named(outcome):
        found.append("not both")
    found += ["onset"] if wants_onset(outcome) and not is_onset_right(outcome) else []
    found += ["cost"] if any(e > LARGE_COST_ERROR for e in cost_errors(outcome)) else []
    found += ["false cause"] if false_findings(outcome) else []
    found += ["false onset"] if outcome.is_healthy and outcome.num_changes else []
    return found


def misses(outcomes: Iterable[DiagnosisOutcome]) -> list[dict[str, Any]]:
    """Every job with a wrong aspect: its number for `--only`, the truth, and its findings."""
    return [_miss(outcome) for outcome in outcomes if wrongs(outcome)]


def _miss(outcome: DiagnosisOutcome) -> dict[str, Any]:
    return {
        "job": outcome.number,
        "wrong": wrongs(outcome),
        "what": outcome.what,
        "truth": [fault_as_json(fault) for fault in outcome.faults],
        "said": [finding_as_json(finding) for finding in outcome.findings],
        "false": [finding.sentence for finding in false_findings(outcome)],
        "withheld": sorted(outcome.withheld),
    }


def fault_as_json(fault: TrueFault) -> dict[str, Any]:
    """The truth of one fault."""
    return {
        "fault": fault.kind,
        "cause": fault.answers[0].cause,
        "or": sorted(fault.causes - {fault.answers[0].cause}),
        "workers": _listed(fault.answers[0].workers),
        "cost": fault.cost,
        "onset": fault.onset,
        "step_change": fault.step_change,
    }


def finding_as_json(finding: StatedFinding) -> dict[str, Any]:
    """One finding, as it is compared."""
    return {
        "cause": finding.cause,
        "workers": _listed(finding.workers),
        "confidence": finding.confidence,
        "cost": finding.cost,
        "onset": finding.onset,
        "sentence": finding.sentence,
    }


def _listed(workers: Workers) -> list[list[int]]:
    return [list(worker) for worker in sorted(workers)]
