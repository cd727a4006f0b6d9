"""Findings and results of the worked case of the fleet's tests."""

from typing import Any

from app.result.finding import Finding
from app.result.window_result import WindowResult
from tests import results


def finding(cause: str = "slow-worker", **given: Any) -> Finding:
    """A finding: dp 1, stage 1 on host-b costs a tenth of the job's time since step 4."""
    evidence = {"workers": [[1, 1]], "slowdowns_against_peers": [1.6]}
    return results.finding(cause, **{"evidence": evidence} | given)


def result(*findings: Finding, **given: Any) -> WindowResult:
    """Two steps of 90 s, S = 1.25; on 4 GPUs 720 GPU-seconds, of which a fifth is lost."""
    values: dict[str, Any] = {
        "slowdown": 1.25,
        "steps": [4, 5],
        "gpu_hours_lost": 144 / 3600,
        "step_time_s": {"recorded": [80.0, 100.0]},
        "fidelity": {"discrepancy": 0.01, "verdict": "ok"},
        "clocks": {"residual_ms": 0.4},
        "optype_slowdown": {"forward-compute": 1.3, "backward-compute": 1.1, "optimizer": 0.9},
        "findings": findings,
    }
    return results.window_result(**values | given)
