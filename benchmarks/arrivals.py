"""How long arrivals take on jobs of thousands of ranks. (`benchmarks arrivals`)

One warm process, as the consumer is. The whole analysis of a window is timed with and without
arrivals in turn, so that both see the same machine; judged by the fastest run of each.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from app.engine.arrivals.arrivals import arrivals_of_replay
from app.engine.memory import keep_freed_memory
from app.engine.replays import prepare
from app.engine.report import analyse_replay, report_result
from app.trace.job import Job, Parallelism
from app.trace.ops import BUILT_IN, OP_CODES, OpKind
from app.trace.window import Trace, Window
from benchmarks.measuring import simulated_window

MAX_RATIO, MAX_S = 1.15, 1.0
MICROBATCHES, STAGES = 64, 16


def dp_only(num_ranks: int, num_buckets: int, num_steps: int, *, late: int | None) -> Window:
    """DDP: a backward in which buckets are reduced one after the other; `late` is 1.3x as slow."""
    rng = np.random.default_rng(7)
    forward_s, bucket_s, transfer_s = 10e-3, 0.5e-3, 0.1e-3
    slow = np.where(np.arange(num_ranks) == late, 1.3, 1.0)[:, None]
    starts, lengths = [], []
    now_s = np.zeros((num_ranks, num_steps))
    for bucket in range(num_buckets + 1):
        took_s = (bucket_s if bucket else forward_s) * slow
        now_s = now_s + took_s * np.exp(0.02 * rng.normal(size=now_s.shape))
        if bucket:
            starts.append(now_s)
            ended_s = now_s.max(axis=0) + transfer_s
            ended_s = ended_s + rng.uniform(1e-6, 7e-6, now_s.shape)
            lengths.append(ended_s - now_s)
            now_s = ended_s
        else:
            forward = now_s
    names = ["forward-compute", "backward-compute", "optimizer"]
    zero = np.zeros_like(forward)
    start_s = np.stack([zero, forward, now_s, *starts])
    duration_s = np.stack([forward, now_s - forward, zero + 1e-3, *lengths])
    optype = [OP_CODES[name] for name in names]
    optype += [OP_CODES["grads-reduce-scatter"]] * num_buckets
    # Rows by step, rank, operation.
    shape = num_steps, num_ranks, len(optype)

    def column(values: object) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, np.int64), shape).ravel()

    rank = np.arange(num_ranks)[:, None]
    trace = Trace(
        step=column(np.arange(num_steps)[:, None, None]),
        dp_rank=column(rank),
        stage=column(0),
        rank=column(rank),
        optype=column(optype).astype(np.int16),
        seq_id=column([0, 0, 0, *range(num_buckets)]),
        mc=column([0, 0, -1, *[0] * num_buckets]),
        mb_id=column([0, 0, -1, *[-1] * num_buckets]),
        start_s=start_s.transpose(2, 1, 0).ravel(),
        duration_s=duration_s.transpose(2, 1, 0).ravel(),
    )
    job = Job.of("dp-only", Parallelism(num_ranks, 1, dsp_size=num_ranks), BUILT_IN)
    origin_ns = tuple(int(at * 1e9) for at in range(num_steps))
    return Window(job, 1, 0, tuple(range(num_steps)), trace, state="complete", origin_ns=origin_ns)


def with_late_worker(window: Window, dp_rank: int, stage: int) -> Window:
    """The window with a worker that comes late to its collectives."""
    trace = window.trace
    is_collective = window.job.op_types.flags(lambda spec: spec.kind is OpKind.COLLECTIVE)
    late = (trace.dp_rank == dp_rank) & (trace.stage == stage) & is_collective[trace.optype]
    shift_s = np.where(late, 0.9 * trace.duration_s, 0.0)
    trace = dataclasses.replace(
        trace, start_s=trace.start_s + shift_s, duration_s=trace.duration_s - shift_s
    )
    return dataclasses.replace(window, trace=trace)


@contextmanager
def without_arrivals() -> Iterator[None]:
    """An analysis inside of it is as it was before there were arrivals."""
    with patch("app.engine.replays.arrivals_of_replay", lambda *_: None):
        yield


@dataclass(frozen=True)
class Measured:
    """Runs of one job: [repeats] seconds of each, those of the processor of all cores together."""

    with_s: list[float]
    without_s: list[float]
    cpu_with_s: list[float]
    cpu_without_s: list[float]
    arrivals_s: list[float]
    ops: int
    occurrences: int
    culprits: list[int]

    @property
    def best_s(self) -> float:
        """The fastest run with arrivals: other work on the machine only adds to it."""
        return min(self.with_s)

    @property
    def ratio(self) -> float:
        """Time with arrivals by time without, of the fastest runs."""
        return min(self.with_s) / min(self.without_s)

    def as_json(self) -> dict[str, Any]:
        """All figures, rounded; the lists as medians."""
        return {
            "best_s": round(self.best_s, 4),
            "ratio": round(self.ratio, 3),
            "cpu_ratio": round(min(self.cpu_with_s) / min(self.cpu_without_s), 3),
            "medians": {
                name: round(statistics.median(values), 4)
                for name, values in asdict(self).items()
                if name.endswith("_s")
            },
            "ops": self.ops,
            "occurrences": self.occurrences,
            "culprits": self.culprits,
        }


def measure(window: Window, repeats: int) -> Measured:
    """An analysis with and without arrivals, and arrivals alone, in turn."""

    def analyse() -> None:
        report_result(analyse_replay(prepare(window)))

    analyse()
    replay = prepare(window)
    found = replay.arrivals
    occurrences = 0 if found is None else found.occurrences.num_occurrences
    culprits = [] if found is None else [found.places[c.place].rank for c in found.culprits]
    runs = Measured([], [], [], [], [], window.trace.num_ops, occurrences, culprits)
    for _ in range(repeats):
        _time(analyse, runs.with_s, runs.cpu_with_s)
        with without_arrivals():
            _time(analyse, runs.without_s, runs.cpu_without_s)
        _time(lambda: arrivals_of_replay(replay, replay.recorded_s), runs.arrivals_s, [])
    return runs


def _time(call: Callable[[], object], wall_s: list[float], cpu_s: list[float]) -> None:
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    call()
    wall_s.append(time.perf_counter() - began_s)
    cpu_s.append(time.process_time() - cpu_began_s)


def main(arguments: list[str]) -> int:
    """Print JSON; 1 while a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks arrivals", description=__doc__)
    parser.add_argument("--workers", type=int, default=16384, help="of the pipelined job")
    parser.add_argument("--ranks", type=int, default=4096, help="of the dp-only job")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(arguments)
    keep_freed_memory()  # as the consumer does
    pipelined = simulated_window(options.workers // STAGES, STAGES, MICROBATCHES, 2)
    jobs: dict[str, Callable[[], Window]] = {
        "workers": lambda: pipelined,
        "workers, one late": lambda: with_late_worker(pipelined, 5, 3),
        "dp only": lambda: dp_only(options.ranks, 100, 8, late=None),
        "dp only, one late": lambda: dp_only(options.ranks, 100, 8, late=options.ranks // 3),
    }
    report = {name: measure(make(), options.repeats) for name, make in jobs.items()}
    passed = all(
        each.best_s < MAX_S and (name.startswith("dp") or each.ratio <= MAX_RATIO)
        for name, each in report.items()
    )
    figures = {name: each.as_json() for name, each in report.items()}
    bars = {"best_s": MAX_S, "ratio": MAX_RATIO}
    print(json.dumps({**figures, "bars": bars, "passed": passed}, indent=2))
    return 0 if passed else 1
