"""Batches and runs for the ingest tests."""

import random
from collections.abc import Iterable, Sequence

import numpy as np

from app.ingest.assembly.assembler import RunAssembler, WindowRules
from app.ingest.assembly.window_codec import PackedWindow
from app.ingest.assembly.windows import WindowRevision
from app.ingest.batch import OpBatch
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import OpColumns

# step, optype, start_ns, duration_ns, seq_id
Row = tuple[int, str, int, int, int]

JOB = Job.of("llm-70b", Parallelism(dp_size=2, pp_size=2))
WINDOW_STEPS = 3
DEADLINE_S = 5.0
REVISE_FOR_S = 600.0


def columns(rows: Sequence[Row]) -> OpColumns:
    ints = [np.array([row[at] for row in rows], dtype=np.int64) for at in (0, 2, 3, 4)]
    step, start_ns, duration_ns, seq_id = ints
    return OpColumns(
        step=step,
        start_ns=start_ns,
        duration_ns=duration_ns,
        seq_id=seq_id,
        mc=np.zeros(len(rows), dtype=np.int64),
        mb_id=np.full(len(rows), -1, dtype=np.int64),
        optype=np.array([OP_CODES[row[1]] for row in rows], dtype=np.int16),
    )


def batch(
    worker: int,
    seq: int,
    rows: Sequence[Row] = (),
    done: Sequence[tuple[int, int]] = (),
    *,
    job: Job = JOB,
    epoch: int = 1,
) -> OpBatch:
    """A batch of worker number dp_rank * pp_size + stage, whose rank is 10 times that."""
    dp_rank, stage = divmod(worker, job.parallelism.pp_size)
    host = f"node-{worker}"
    return OpBatch(epoch, 10 * worker, dp_rank, stage, host, seq, tuple(done), columns(rows))


def rows_of(worker: int, step: int) -> list[Row]:
    """Operations of one worker in one step, different for each; one is a GC pause."""
    begin_ns = 1_700_000_000_000_000_000 + step * 10**9 + worker * 1_000_003
    rows = [
        (step, "forward-compute", begin_ns + seq * 7_001, 5_000 + worker, seq)
        for seq in range(2 + worker % 2)
    ]
    return [
        *rows,
        (step, "gc-pause", begin_ns - 11, 3, 0),
        (step, "optimizer", begin_ns + 9**6, 7, 0),
    ]


def step_batches(
    step: int, workers: Iterable[int] = range(4), *, seq: int | None = None
) -> list[OpBatch]:
    """One batch per worker with the whole step."""
    seq = step if seq is None else seq
    return [
        batch(worker, seq, rows := rows_of(worker, step), [(step, len(rows))]) for worker in workers
    ]


def cut_batches(num_steps: int, random_: random.Random, *, num_workers: int = 4) -> list[OpBatch]:
    """The operations of whole steps in batches with random boundaries, as a worker sends them."""
    batches = []
    for worker in range(num_workers):
        seq = 0
        waiting: list[Row] = []
        done: list[tuple[int, int]] = []
        for step in range(num_steps):
            rows = rows_of(worker, step)
            for row in rows:
                waiting.append(row)
                if random_.random() < 0.3:
                    batches.append(batch(worker, seq, waiting, done))
                    seq, waiting, done = seq + 1, [], []
            done.append((step, len(rows)))
        batches.append(batch(worker, seq, waiting, done))
    return batches


class ClosedWindows:
    """Stored operations of closed windows, as the assembler asks for them."""

    def __init__(self) -> None:
        self.ops: dict[int, PackedWindow] = {}

    def save(self, changes: Iterable[WindowRevision]) -> None:
        for change in changes:
            if change.ops is not None:
                self.ops[change.window.first_step] = change.ops

    def __call__(self, first_step: int) -> PackedWindow:
        return self.ops[first_step]


def assembler(
    *, job: Job = JOB, window_steps: int = WINDOW_STEPS, closed: ClosedWindows | None = None
) -> RunAssembler:
    rules = WindowRules(window_steps, DEADLINE_S, REVISE_FOR_S)
    return RunAssembler(job, 1, rules, closed or ClosedWindows())


def feed(run: RunAssembler, batches: Iterable[OpBatch], now_s: float = 0.0) -> list[WindowRevision]:
    """Add the batches one by one, then settle; returns the window revisions."""
    for each in batches:
        run.add(each, now_s)
    return run.settle(now_s)
