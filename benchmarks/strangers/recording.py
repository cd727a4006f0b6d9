"""What workers record of a simulated job: a window in the published or the client's format."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import OP_CODES
from app.trace.window import NS_PER_S, SkippedStep, Trace, Window
from benchmarks.strangers.graph import P2P, StepGraph
from benchmarks.strangers.rows import Rows, joined, present_rows, wait_rows, whole_rows
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Floats, Simulated

EPOCH_NS = 1_780_000_000 * NS_PER_S
END_JITTER_S = 8e-6  # between the recorded ends of one collective's members
EVALUATION = "it was an evaluation, no training"


@dataclass(frozen=True, slots=True)
class Recorder:
    """How a job is recorded.

    `is_client`: with absolute starts, and micro-batches on p2p operations, as the client sends
    them; else as published, each step from 0. `offset_s` and `drift` are [hosts]: by how much a
    host's clock is ahead, and what it gains a second. `has_waits`: a client that can see the waits
    inside of computations.
    """

    is_client: bool
    names_hosts: bool
    first_step: int
    offset_s: tuple[float, ...]
    drift: tuple[float, ...]
    has_waits: bool = True
    epoch: int = 1


class Interruption(NamedTuple):
    """A wait or pause that a worker notes, beside one of its operations.

    `step` and `op` are positions, `after_s` is from the operation's start to its own.
    """

    name: str
    step: int
    op: int
    dp_rank: int
    after_s: float
    duration_s: float


@dataclass(slots=True)
class Extras:
    """What else is recorded: interruptions, and columns [steps, ops, dp ranks] of operations.

    `evaluations` are positions of steps before each of which one evaluation was marked.
    """

    interruptions: list[Interruption] = field(default_factory=list)
    tokens: NDArray[np.int64] | None = None
    seq_len_sq: NDArray[np.int64] | None = None
    evaluations: tuple[int, ...] = ()


def record(
    shape: Shape,
    graph: StepGraph,
    simulated: Simulated,
    recorder: Recorder,
    extras: Extras,
    rng: np.random.Generator,
) -> Window:
    """The window that Paceline is given."""
    columns = _columns(shape, graph, simulated, recorder, extras, rng)
    num_steps = simulated.start_s.shape[0]
    starts, position = columns.pop("true_start_s"), columns["step"]
    origin_s = np.full(num_steps, np.inf)
    np.minimum.at(origin_s, position, starts)
    columns["start_s"] = starts - origin_s[position]
    origin_ns = None
    if recorder.is_client:
        origin_ns = tuple(EPOCH_NS + round(each * NS_PER_S) for each in origin_s.tolist())
    # Each evaluation takes a number, too.
    is_after = np.isin(np.arange(num_steps), extras.evaluations)
    numbers = recorder.first_step + np.arange(num_steps) + np.cumsum(is_after)
    columns["step"] = numbers[position]
    evaluations = [int(numbers[each]) - 1 for each in extras.evaluations]
    hosts = {
        (dp_rank, stage): f"node-{shape.host(dp_rank, stage):03d}"
        for dp_rank, stage in shape.workers()
        if recorder.names_hosts
    }
    return Window(
        job=shape.job,
        epoch=recorder.epoch,
        first_step=recorder.first_step,
        steps=tuple(numbers.tolist()),
        trace=Trace(**columns),
        state="complete",
        skipped=tuple(SkippedStep(each, EVALUATION, kind="eval") for each in evaluations),
        hosts=hosts,
        origin_ns=origin_ns,
    )


def _columns(
    shape: Shape,
    graph: StepGraph,
    simulated: Simulated,
    recorder: Recorder,
    extras: Extras,
    rng: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    size = simulated.start_s.shape
    num_steps, _, dp = size
    mc, mb = graph.mc, graph.mb
    is_pytorch = shape.gradients in ("ddp", "fsdp")
    if not recorder.is_client or is_pytorch:
        is_unnamed = graph.of(*P2P) if not is_pytorch else np.ones(graph.num_ops, bool)
        mc, mb = np.where(is_unnamed, -1, mc), np.where(is_unnamed, -1, mb)
    end_s = simulated.end_s + END_JITTER_S * rng.random(size) * graph.is_communication[:, None]
    step = np.arange(num_steps)[:, None, None]
    by_op = {
        name: values[None, :, None]
        for name, values in {
            "optype": graph.optype, "stage": graph.stage, "seq_id": graph.seq_id,
            "mc": mc, "mb_id": mb,
        }.items()
    }  # fmt: skip
    columns: Rows = {
        name: np.broadcast_to(values, size).ravel()
        for name, values in {**by_op, "step": step, "dp_rank": np.arange(dp)[None, None]}.items()
    }
    columns |= {"start_s": simulated.start_s.ravel(), "end_s": end_s.ravel()}
    for name in ("tokens", "seq_len_sq"):
        values = getattr(extras, name)
        if values is not None:
            columns[name] = values.ravel()
    columns = present_rows(graph, simulated, columns)
    if is_pytorch:
        columns = whole_rows(graph, simulated, columns)
        if recorder.has_waits:
            columns = joined(columns, wait_rows(graph, simulated))
    if extras.interruptions:
        columns = joined(columns, _annotations(graph, simulated, extras))
    starts, ends = columns.pop("start_s"), columns.pop("end_s")
    host = columns["stage"] * dp + columns["dp_rank"]
    columns["rank"] = host * shape.tp
    host = columns["rank"] // shape.gpus_per_host
    offset, rate = np.array(recorder.offset_s)[host], 1 + np.array(recorder.drift)[host]
    seen = _rounded(starts * rate + offset)
    return {
        **columns,
        "true_start_s": seen,
        "duration_s": np.maximum(_rounded(ends * rate + offset) - seen, 0.0),
    }


def _rounded(seconds: Floats) -> Floats:
    """As a clock with nanoseconds shows it."""
    return np.round(seconds, 9)


def _annotations(graph: StepGraph, simulated: Simulated, extras: Extras) -> Rows:
    """Rows of interruptions, which a client numbers by start."""
    noted = sorted(
        (simulated.start_s[e.step, e.op, e.dp_rank] + e.after_s, e) for e in extras.interruptions
    )
    seen: dict[tuple[Any, ...], int] = {}
    seq_ids = []
    for _, each in noted:
        key = (each.name, each.step, each.dp_rank, int(graph.stage[each.op]))
        seq_ids.append(seen.get(key, 0))
        seen[key] = seq_ids[-1] + 1
    begun = np.array([start for start, _ in noted])
    return {
        "optype": np.array([OP_CODES[each.name] for _, each in noted]),
        "stage": np.array([int(graph.stage[each.op]) for _, each in noted]),
        "seq_id": np.array(seq_ids),
        "step": np.array([each.step for _, each in noted]),
        "dp_rank": np.array([each.dp_rank for _, each in noted]),
        "start_s": begun,
        "end_s": begun + np.array([each.duration_s for _, each in noted]),
    }
