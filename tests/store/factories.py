"""Jobs, runs and windows of which only what a test names matters."""

from typing import Any

from app.store import jobs
from app.store.jobs import Registration
from app.store.windows import WindowRecord
from app.trace.job import Parallelism


def registration(**given: Any) -> Registration:
    """A run of 2 x 2 workers."""
    values: dict[str, Any] = {
        "name": "llm-70b",
        "parallelism": Parallelism(dp_size=2, pp_size=2),
        "num_gpus": 4,
        "framework": None,
        "labels": {},
        "run_key": "run-1",
    }
    return Registration(**values | given)


def register(store: Any, job_id: str = "job", *, now_s: float = 100.0, **given: Any) -> int:
    """The epoch of a run that is registered now."""
    with store.write() as conn:
        return jobs.register(conn, job_id, registration(**given), now_s=now_s).epoch


def window(first_step: int = 0, **given: Any) -> WindowRecord:
    """The first revision of an open window with figures."""
    values: dict[str, Any] = {
        "epoch": 1,
        "first_step": first_step,
        "last_step": first_step,
        "revision": 1,
        "state": "open",
        "num_steps": 1,
        "num_ops": 100,
        "slowdown": 1.25,
        "verdict": "ok",
        "result": {"slowdown": 1.25, "step_slowdown": [1.25]},
        "per_step": {"stage_slowdown": [[1.0, 1.25]]},
        "trace": None,
        "updated_s": 1000.0,
    }
    return WindowRecord(**values | given)
