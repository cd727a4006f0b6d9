"""What was wrong, job by job, so that each can be made again alone."""

from collections.abc import Iterable
from typing import Any

from app.cli.bench.diagnosis.outcome import Fault, Outcome, Said, Workers
from app.cli.bench.diagnosis.verdict import false_findings, wrongs


def misses(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Every job with something wrong: its number for `--only`, the truth, and what was said."""
    return [_miss(outcome) for outcome in outcomes if wrongs(outcome)]


def _miss(outcome: Outcome) -> dict[str, Any]:
    return {
        "job": outcome.number,
        "wrong": wrongs(outcome),
        "what": outcome.what,
        "truth": [fault_as_json(fault) for fault in outcome.faults],
        "said": [said_as_json(said) for said in outcome.said],
        "false": [said.sentence for said in false_findings(outcome)],
        "withheld": sorted(outcome.withheld),
    }


def fault_as_json(fault: Fault) -> dict[str, Any]:
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


def said_as_json(said: Said) -> dict[str, Any]:
    """One finding, as it is compared."""
    return {
        "cause": said.cause,
        "workers": _listed(said.workers),
        "confidence": said.confidence,
        "cost": said.cost,
        "onset": said.onset,
        "sentence": said.sentence,
    }


def _listed(workers: Workers) -> list[list[int]]:
    return [list(worker) for worker in sorted(workers)]
