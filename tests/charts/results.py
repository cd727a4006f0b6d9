"""Window results (docs/glossary.md) with only what a chart test is about."""

import base64
from typing import Any

import numpy as np

from app.result.figures import as_tuples
from app.result.finding import Finding
from app.result.window_result import WindowResult
from tests.arrival_results import block
from tests.results import finding, window_result


def result(worker_slowdown: Any = ((1.0, 1.0), (1.0, 1.4)), **parts: Any) -> WindowResult:
    """A result of two steps; the worker (dp 1, stage 1) is slow unless told otherwise."""
    by_worker = np.asarray(worker_slowdown, dtype=float)
    by_rank = by_worker.max(axis=1)
    dp_size, pp_size = by_worker.shape
    known = {
        "job": {"dp_size": dp_size, "pp_size": pp_size},
        "steps": [10, 11],
        "slowdown": 1.42,
        "fidelity": {"discrepancy": 0.007, "verdict": "ok"},
        "optype_slowdown": {
            "forward-compute": 1.3,
            "backward-compute": 1.1,
            "forward-pp-comm": 1.02,
        },
        "worker_slowdown": as_tuples(by_worker),
        "m_w": 0.98,
        "stage_share": [0.02, 0.1],
        "stage_compute_s": {"forward": [0.067, 0.14], "backward": [0.143, None]},
        "optype_time_s": {
            "forward-compute": {"recorded": 1.2, "transfer": None, "wait": None},
            "forward-pp-comm": {"recorded": 0.3, "transfer": 0.1, "wait": 0.2},
        },
        "step_time_s": {"recorded": [2.2, 2.2]},
        "arrivals": block((0.0, 0.1, *[0.01] * (dp_size - 2))[:dp_size], culprits=()),
        "findings": [found()],
        "per_step": {
            "optype_slowdown": {},
            "stage_slowdown": [],
            "worker_slowdown": as_tuples(np.stack([by_worker, by_worker])),
            "dp_rank_slowdown": as_tuples(np.stack([by_rank, by_rank])),
        },
    }
    return window_result(**known | parts)


SLOW = (
    "dp 1, stage 1 on host-017 is 1.6x slower than its peers in forward and backward, "
    "since step 10; it costs 29 % of the job's GPU time"
)


def found(cause: str = "slow-worker", sentence: str = SLOW, **given: Any) -> Finding:
    """A finding of which only the sentence matters, unless more is given."""
    return finding(cause, **{"culprits": [], "cost": 0.29, "sentence": sentence} | given)


def unpacked(array: Any) -> Any:
    """Plotly's binary array as nested lists; plain lists as they are."""
    if not isinstance(array, dict):
        return array
    values = np.frombuffer(base64.b64decode(array["bdata"]), dtype=f"<{array['dtype']}")
    shape = array.get("shape")
    return values.reshape([int(n) for n in shape.split(",")] if shape else -1).tolist()


def numbers_in(value: Any) -> list[float]:
    """Every number anywhere in a figure, binary arrays included."""
    if isinstance(value, dict) and "bdata" in value:
        return numbers_in(unpacked(value))
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers_in(part)]
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in numbers_in(part)]
    return [value] if isinstance(value, float) else []
