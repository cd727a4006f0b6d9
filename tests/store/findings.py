"""Findings and results with defaults for all fields that a test leaves out."""

from typing import Any


def finding(cause: str = "slow-worker", **given: Any) -> dict[str, Any]:
    """A finding: dp 1, stage 1 on host-b costs a tenth of the job's time since step 4."""
    values = {
        "cause": cause,
        "score": 1.0,
        "confidence": 0.9,
        "culprits": [{"dp_rank": 1, "stage": 1, "host": "host-b"}],
        "onset_step": 4,
        "persistence": "chronic",
        "cost": 0.1,
        "evidence": {"workers": [[1, 1]], "slowdowns_against_peers": [1.6]},
        "sentence": "dp 1, stage 1 on host-b is 1.6x slower than its peers.",
    }
    return values | given


def result(*findings: dict[str, Any], **given: Any) -> dict[str, Any]:
    """Two steps of 90 s, S = 1.25; on 4 GPUs 720 GPU-seconds, of which a fifth is lost."""
    values = {
        "slowdown": 1.25,
        "steps": [4, 5],
        "gpu_hours_lost": 144 / 3600,
        "step_time_s": {"recorded": [80.0, 100.0]},
        "fidelity": {"discrepancy": 0.01, "verdict": "ok"},
        "clocks": {"residual_ms": 0.4},
        "optype_slowdown": {"forward-compute": 1.3, "backward-compute": 1.1, "optimizer": 0.9},
        "findings": list(findings),
    }
    return values | given
