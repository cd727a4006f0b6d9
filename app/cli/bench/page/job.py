"""A made job with a slow worker, step after step, on a stack of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.cli.bench.ingest_stack import Target, running
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.cli.bench.pipeline_job import Worker

CONNECTIONS = 32
QUEUE_BYTES = 4 << 30
RESULT_WITHIN_S = 300.0
# Beyond this a page's job has 16 stages, as the published ones have.
_STAGES = 16
_SLOWDOWN = 1.5


@contextmanager
def stack(num_workers: int) -> Iterator[Target]:
    """API, consumer, queue and store with one registered job of so many workers."""
    stages = stages_of(num_workers)
    with running(
        workers=num_workers, stages=stages, queue_bytes=QUEUE_BYTES, consumes=True
    ) as target:
        yield target


def stages_of(num_workers: int) -> int:
    """Pipeline stages of a job of so many workers.

    Raises:
        InvalidRequest: they cannot be put in so many stages.
    """
    stages = min(_STAGES, num_workers // 2)
    if num_workers < 4 or num_workers % stages:
        raise InvalidRequest(f"--workers {num_workers}: want 4 or more, and a multiple of 16")
    return stages


@dataclass
class Feed:
    """Sends one more step at a time, of every worker."""

    target: Target
    made: "list[Worker]"
    num_steps: int = field(default=0)

    @classmethod
    def of(cls, target: Target, num_workers: int, microbatches: int) -> "Feed":
        """The job's workers, of which one is slow."""
        from app.cli.bench.pipeline_job import workers
        from app.synth.faults.slow_worker import SlowWorker

        stages = stages_of(num_workers)
        slow = SlowWorker(1, stages // 2, _SLOWDOWN)
        return cls(target, workers(num_workers // stages, stages, microbatches, 1, (slow,)))

    async def push(self, steps: int = 1) -> None:
        """Returns once so many more steps are analysed, one after the other."""
        for _ in range(steps):
            await self._push_one()

    async def _push_one(self) -> None:
        from app.cli.bench.pipeline_load import Connection, push_all, result_of

        # The API hangs up on who says nothing for some seconds, so each step has its own.
        connections = [await Connection.open(self.target) for _ in range(CONNECTIONS)]
        await push_all(connections, (worker.body(self.num_steps) for worker in self.made))
        self.num_steps += 1
        await result_of(connections[0], self.num_steps - 1, RESULT_WITHIN_S)
        for connection in connections:
            connection.close()
