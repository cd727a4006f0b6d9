"""Push made steps over HTTP and remember every operation that was acknowledged."""

import threading
from collections import Counter
from dataclasses import dataclass, field

import httpx
import numpy as np

from app.ingest import codec
from app.ingest.batch import OpBatch, OpColumns
from app.synth.run import MadeJob
from app.trace.window import Trace
from tests.e2e.stack import Stack, select_nothing

OpKey = tuple[int, int, int, int, int]  # epoch, rank, step, optype, seq_id


def register(stack: Stack, job_id: str, made: MadeJob, run_key: str) -> int:
    """The epoch of a run of the job."""
    sizes = made.parallelism
    answer = stack.http.put(
        f"/jobs/{job_id}",
        json={
            "parallelism": {"dp_size": sizes.dp_size, "pp_size": sizes.pp_size},
            "run_key": run_key,
        },
    )
    answer.raise_for_status()
    return int(answer.json()["epoch"])


def batch_of(trace: Trace, epoch: int, dp_rank: int, stage: int, batch_seq: int) -> OpBatch:
    """One worker's operations of one step as a batch."""
    ops = trace.select(np.flatnonzero((trace.dp_rank == dp_rank) & (trace.stage == stage)))
    start_ns = 10**18 + np.rint(ops.start_s * 1e9).astype(np.int64)
    columns = OpColumns(
        step=ops.step,
        start_ns=start_ns,
        duration_ns=np.rint(ops.duration_s * 1e9).astype(np.int64),
        seq_id=ops.seq_id,
        mc=ops.mc,
        mb_id=ops.mb_id,
        optype=ops.optype,
    )
    done = ((int(ops.step[0]), ops.num_ops),)
    return OpBatch(epoch, int(ops.rank[0]), dp_rank, stage, None, batch_seq, done, columns)


def keys(batch: OpBatch) -> list[OpKey]:
    """Identity of every operation of a batch."""
    columns = batch.columns
    rows = zip(columns.step.tolist(), columns.optype.tolist(), columns.seq_id.tolist(), strict=True)
    return [(batch.epoch, batch.rank, *row) for row in rows]


@dataclass
class Producer:
    """Every worker of a made job, pushing step after step until told to stop."""

    stack: Stack
    job_id: str
    made: MadeJob
    epoch: int
    acknowledged: Counter[OpKey] = field(default_factory=Counter)
    retries: int = 0
    steps_pushed: int = 0

    def run(self, stop: threading.Event) -> None:
        """Pushes whole steps; a batch is tried until it is acknowledged."""
        while not stop.is_set():
            trace = self.made.make_step(self.steps_pushed)
            for dp_rank in range(self.made.parallelism.dp_size):
                for stage in range(self.made.parallelism.pp_size):
                    self.push(batch_of(trace, self.epoch, dp_rank, stage, self.steps_pushed))
            self.steps_pushed += 1

    def is_past(self, step: int) -> bool:
        """Whether a step after this one has been pushed."""
        return self.steps_pushed > step

    def push(self, batch: OpBatch) -> None:
        """Returns once the batch is acknowledged."""
        body = codec.encode(batch)
        while not self._accepted(body):
            self.retries += 1
            select_nothing(0.05)
        self.acknowledged.update(keys(batch))

    def _accepted(self, body: bytes) -> bool:
        headers = {"Content-Type": "application/vnd.paceline.ops+msgpack"}
        try:
            answer = self.stack.http.post(f"/jobs/{self.job_id}/ops", content=body, headers=headers)
        except httpx.TransportError:
            return False
        if answer.status_code == 503:
            return False
        assert answer.status_code == 202, answer.text
        return True
