"""Push simulated steps over HTTP."""

from app.ingest.batch import OpBatch
from app.ingest.wire import codec
from app.synth.job import SimulatedJob
from tests.e2e.stack import Stack
from tests.harness.batches import batch_of

__all__ = ["batch_of", "push", "register"]


def register(stack: Stack, job_id: str, simulated: SimulatedJob, run_key: str) -> int:
    """Register a run of the job; returns its epoch."""
    sizes = simulated.parallelism
    answer = stack.http.put(
        f"/jobs/{job_id}",
        json={
            "parallelism": {"dp_size": sizes.dp_size, "pp_size": sizes.pp_size},
            "run_key": run_key,
        },
    )
    answer.raise_for_status()
    return int(answer.json()["epoch"])


def push(stack: Stack, job_id: str, batch: OpBatch) -> None:
    """Send one batch, which has to be acknowledged."""
    headers = {"Content-Type": codec.BINARY_TYPE}
    answer = stack.http.post(f"/jobs/{job_id}/ops", content=codec.encode(batch), headers=headers)
    assert answer.status_code == 202, answer.text
