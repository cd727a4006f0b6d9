"""Alerts of which only what a test names matters."""

from typing import Any

from app.alerts.alert import Alert, Transition, WorstWorker

SECRET = "whsec_" + "c2VjcmV0" * 4


def alert(*, transition: dict[str, Any] | None = None, **given: Any) -> Alert:
    """llm-70b begins to straggle."""
    of_transition: dict[str, Any] = {
        "kind": "firing",
        "window_id": "2-1220",
        "slowdown": 1.42,
        "threshold": 1.1,
        "since_step": 1204,
        "num_windows": 3,
    }
    values: dict[str, Any] = {
        "job_id": "llm-70b",
        "job_name": "llm-70b",
        "transition": Transition(**of_transition | (transition or {})),
        "at_s": 1_700_000_000.25,
        "worst_worker": WorstWorker(3, 1, "host-017", 1.40),
        "url": "https://paceline.example/jobs/llm-70b",
    }
    return Alert(**values | given)
