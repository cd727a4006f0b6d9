"""What workers record of a simulated job: a window in the published or the client's format."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import OP_CODES
from app.trace.window import NS_PER_S, Trace, Window
from benchmarks.strangers.graph import P2P, StepGraph
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Floats, Simulated

EPOCH_NS = 1_780_000_000 * NS_PER_S
END_JITTER_S = 8e-6  # between the recorded ends of one collective's members
CHUNKED = tuple(OP_CODES[name] for name in ("params-all-gather", "grads-reduce-scatter"))


@dataclass(frozen=True, slots=True)
class Recorder:
    """How a job is recorded.

    `is_client`: with absolute starts, and micro-batches on p2p operations, as the client sends
    them; else as published, each step from 0. `offset_s` and `drift` are [hosts]: by how much a
    host's clock is ahead, and what it gains a second.
    """

    is_client: bool
    names_hosts: bool
    first_step: int
    offset_s: tuple[float, ...]
    drift: tuple[float, ...]


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
    """What else is recorded: interruptions, and columns [steps, ops, dp ranks] of operations."""

    interruptions: list[Interruption] = field(default_factory=list)
    tokens: NDArray[np.int64] | None = None
    seq_len_sq: NDArray[np.int64] | None = None


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
    starts = columns.pop("true_start_s")
    position = columns["step"] - recorder.first_step
    origin_s = np.full(num_steps, np.inf)
    np.minimum.at(origin_s, position, starts)
    columns["start_s"] = starts - origin_s[position]
    origin_ns = None
    if recorder.is_client:
        origin_ns = tuple(EPOCH_NS + round(each * NS_PER_S) for each in origin_s.tolist())
    hosts = {
        (dp_rank, stage): f"node-{shape.host(dp_rank, stage):03d}"
        for dp_rank, stage in shape.workers()
        if recorder.names_hosts
    }
    return Window(
        job=shape.job,
        epoch=1,
        first_step=recorder.first_step,
        steps=tuple(range(recorder.first_step, recorder.first_step + num_steps)),
        trace=Trace(**columns),
        state="complete",
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
    if not recorder.is_client:
        mc = np.where(graph.of(*P2P), -1, mc)
        mb = np.where(graph.of(*P2P), -1, mb)
    end_s = simulated.end_s + END_JITTER_S * rng.random(size) * graph.is_communication[:, None]
    step = np.arange(num_steps)[:, None, None]
    by_op = {
        name: values[None, :, None]
        for name, values in {
            "optype": graph.optype, "stage": graph.stage, "seq_id": graph.seq_id,
            "mc": mc, "mb_id": mb,
        }.items()
    }  # fmt: skip
    columns: dict[str, NDArray[Any]] = {
        name: np.broadcast_to(values, size).ravel()
        for name, values in {**by_op, "step": step, "dp_rank": np.arange(dp)[None, None]}.items()
    }
    starts, ends = simulated.start_s.ravel(), end_s.ravel()
    if extras.interruptions:
        columns, starts, ends = _with_annotations(graph, simulated, columns, ends, extras)
    for name in ("tokens", "seq_len_sq"):
        values = getattr(extras, name)
        if values is not None:
            more = np.full(len(extras.interruptions), -1)
            columns[name] = np.concatenate([values.ravel(), more])
    host = columns["stage"] * dp + columns["dp_rank"]
    columns["rank"] = host * shape.tp
    host = columns["rank"] // shape.gpus_per_host
    offset, rate = np.array(recorder.offset_s)[host], 1 + np.array(recorder.drift)[host]
    seen = _rounded(starts * rate + offset)
    columns["step"] = columns["step"] + recorder.first_step
    return {
        **columns,
        "true_start_s": seen,
        "duration_s": np.maximum(_rounded(ends * rate + offset) - seen, 0.0),
    }


def _rounded(seconds: Floats) -> Floats:
    """As a clock with nanoseconds shows it."""
    return np.round(seconds, 9)


def _with_annotations(
    graph: StepGraph,
    simulated: Simulated,
    columns: dict[str, NDArray[Any]],
    ends: Floats,
    extras: Extras,
) -> tuple[dict[str, NDArray[Any]], Floats, Floats]:
    """Columns, starts and ends with interruptions, which a client numbers by start."""
    noted = sorted(
        (simulated.start_s[e.step, e.op, e.dp_rank] + e.after_s, e) for e in extras.interruptions
    )
    seen: dict[tuple[Any, ...], int] = {}
    seq_ids = []
    for _, each in noted:
        key = (each.name, each.step, each.dp_rank, int(graph.stage[each.op]))
        seq_ids.append(seen.get(key, 0))
        seen[key] = seq_ids[-1] + 1
    none = [-1] * len(noted)
    more = {
        "optype": [OP_CODES[each.name] for _, each in noted],
        "stage": [int(graph.stage[each.op]) for _, each in noted],
        "seq_id": seq_ids,
        "mc": none,
        "mb_id": none,
        "step": [each.step for _, each in noted],
        "dp_rank": [each.dp_rank for _, each in noted],
    }
    both = {name: np.concatenate([values, more[name]]) for name, values in columns.items()}
    begun = np.array([start for start, _ in noted])
    lasted = np.array([each.duration_s for _, each in noted])
    starts = np.concatenate([simulated.start_s.ravel(), begun])
    return both, starts, np.concatenate([ends, begun + lasted])
