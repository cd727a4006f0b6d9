"""A made job's batches, one worker and some steps at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.ingest.batch import OpBatch
    from app.synth.faults.fault import Fault

NS_PER_S = 10**9
BEGAN_NS = 1_790_000_000 * NS_PER_S
WORKERS_A_HOST = 8


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's operations in the first `steps_per_batch` steps of the job, as a batch."""

    batch: "OpBatch"
    num_steps: int
    step_ns: int

    def body(self, number: int) -> bytes:
        """Its batch of this number, from 0."""
        from app.ingest.codec import encode

        first = number * self.num_steps
        columns, done = self.batch.columns, self.batch.steps_done
        moved = replace(
            columns, step=columns.step + first, start_ns=columns.start_ns + first * self.step_ns
        )
        declared = tuple((step + first, num_ops) for step, num_ops in done)
        return encode(replace(self.batch, batch_seq=number, columns=moved, steps_done=declared))


def workers(
    dp: int, pp: int, microbatches: int, steps_per_batch: int, faults: "tuple[Fault, ...]" = ()
) -> list[Worker]:
    """All workers of a job of dp x pp workers, by dp rank and stage; healthy without faults."""
    import numpy as np

    from app.synth.run import MadeJob
    from app.trace.job import Parallelism

    made = MadeJob(Parallelism(dp, pp), microbatches, faults=faults)
    trace = made.make(range(steps_per_batch))
    step_ns = round(float((trace.start_s + trace.duration_s).max()) * NS_PER_S)
    worker = trace.dp_rank.astype(np.int64) * pp + trace.stage
    rows = np.lexsort((trace.start_s, trace.step, worker))
    bounds = np.searchsorted(worker[rows], np.arange(dp * pp + 1)).tolist()
    return [
        Worker(_batch(trace, rows[first:end], number, pp, step_ns), steps_per_batch, step_ns)
        for number, (first, end) in enumerate(pairwise(bounds))
    ]


def in_turn(of_job: list[Worker], numbers: Iterable[int]) -> Iterator[bytes]:
    """Batches of these numbers of every worker, all workers' first ones before their second."""
    for number in numbers:
        for worker in of_job:
            yield worker.body(number)


def _batch(trace: Any, rows: Any, worker: int, pp: int, step_ns: int) -> "OpBatch":
    import numpy as np

    from app.ingest.batch import OpBatch, OpColumns

    ops = trace.select(rows)
    since_ns = np.rint(ops.start_s * NS_PER_S).astype(np.int64) + ops.step * step_ns
    columns = OpColumns(
        step=ops.step,
        start_ns=BEGAN_NS + since_ns,
        duration_ns=np.rint(ops.duration_s * NS_PER_S).astype(np.int64),
        seq_id=ops.seq_id,
        mc=ops.mc,
        mb_id=ops.mb_id,
        optype=ops.optype,
    )
    steps, num_ops = np.unique(ops.step, return_counts=True)
    done = tuple(zip(steps.tolist(), num_ops.tolist(), strict=True))
    host = f"node-{worker // WORKERS_A_HOST}"
    rank = int(ops.rank[0])
    return OpBatch(1, rank, worker // pp, worker % pp, host, 0, done, columns)
