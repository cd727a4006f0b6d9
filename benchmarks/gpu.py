"""Recordings from a real GPU: is the slow rank named, at what cost, and a healthy job left alone?

    python -m benchmarks gpu [--shared DIR]

`--shared` holds gpu/trace-nccl-*.parquet with their meta files. What is true of each was measured
beside the recording: the step with and without the slow rank.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.terminal.blocks import known
from app.result.finding import Finding
from app.result.window_result import WindowResult, total_s
from app.trace.window import Window

MAX_DISCREPANCY = 0.02


@dataclass(frozen=True)
class Truth:
    """What is true of a recording; `cost` [least, most] is given where one figure is asked for."""

    name: str
    rank: int | None
    cost: tuple[float, float] | None = None
    holds_fidelity: bool = True


TRUTHS = (
    Truth("ddp-slow", 1, (0.39, 0.43)),
    Truth("fsdp2-slow", 1, holds_fidelity=False),
    Truth("pipe-slow", 1),
    Truth("ddp-none", None),
    # Bound by its hosts in three of eight steps: no slow worker, and what is lost is said.
    Truth("fsdp2-none", None, holds_fidelity=False),
    Truth("pipe-none", None),
)


def main(arguments: list[str]) -> int:
    """Print one JSON object; 1 where a bar is missed, 2 where the recordings are not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("..") / "shared")
    folder = parser.parse_args(arguments).shared / "gpu"
    if not folder.is_dir():
        print(f"{folder}: no such folder: name the one that holds gpu/ with --shared")
        return 2
    found = {truth.name: judged(truth, folder) for truth in TRUTHS}
    missed = [f"{name}: {each}" for name, one in found.items() for each in one["missed"]]
    print(json.dumps({"recordings": found, "missed": missed}, indent=1))
    return 1 if missed else 0


def judged(truth: Truth, folder: Path) -> dict[str, Any]:
    """What is said of one recording, and which bars that misses."""
    from app.monitor import analysed

    result = analysed(recorded(truth, folder))[1]
    return {
        "said": [finding.sentence for finding in result.findings or ()],
        "cost": [finding.cost for finding in result.findings or ()],
        "cost_range": [finding.cost_range for finding in result.findings or ()],
        "slowdown": result.slowdown,
        "step_ms": 1e3 * total_s(result, "recorded") / len(result.steps),
        "discrepancy": known(result.fidelity.discrepancy),
        "unexplained_share": result.unexplained_share,
        "missed": misses(truth, result),
    }


def misses(truth: Truth, result: WindowResult) -> list[str]:
    """The bars that the result of a recording misses."""
    findings, missed = result.findings or (), []
    if truth.rank is None:
        missed += [f"false cause: {finding.sentence}" for finding in findings]
    else:
        missed += _misses_of_fault(truth, findings)
    discrepancy = known(result.fidelity.discrepancy)
    if truth.holds_fidelity and discrepancy > MAX_DISCREPANCY:
        missed.append(f"fidelity: simulated and recorded step differ by {discrepancy:.1%}")
    if truth.name == "fsdp2-none" and not findings and not result.unexplained_share:
        missed.append("neither a late host nor a share that is not explained")
    return missed


def _misses_of_fault(truth: Truth, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["nothing is named"]
    first, *others = findings
    missed = [f"another cause: {finding.sentence}" for finding in others]
    if first.cause != "slow-worker":
        missed.append(f"the cause is {first.cause}")
    if [culprit.rank for culprit in first.culprits] != [truth.rank]:
        missed.append(f"culprits: {[culprit.as_json() for culprit in first.culprits]}")
    if truth.cost is not None:
        low, high = truth.cost
        if first.cost_range is not None:
            missed.append(f"a range of costs: {first.cost_range}")
        elif first.cost is None or not low <= first.cost <= high:
            missed.append(f"cost {first.cost}, not within {low} to {high}")
    return missed


def recorded(truth: Truth, folder: Path) -> Window:
    """The recording as a window."""
    from app.trace.readers.published import trace_files

    name = f"nccl-{truth.name}"
    return trace_files.read(folder / f"trace-{name}.parquet", folder / f"meta-{name}.yaml")
