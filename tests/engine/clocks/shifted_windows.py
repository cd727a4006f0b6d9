"""Windows as hosts with clocks of their own would have recorded them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from app.engine.replays import prepare
from app.trace.ops import Axis
from app.trace.window import Window

BEGAN_NS = 1_700_000_000 * 10**9
NS = 1e9
HostOf = Callable[[int, int], str]


@dataclass(frozen=True)
class Clock:
    """What one host's clock shows: the true time, so far ahead, and faster by so much."""

    offset_ns: int = 0
    drift_ppm: float = 0.0


@dataclass(frozen=True)
class Ends:
    """How shared ends are recorded: spread by so much, and in a share of moments one far late."""

    jitter_s: float = 0.0
    late_share: float = 0.0
    late_s: float = 0.0
    seed: int = 0


def worker_is_host(dp_rank: int, stage: int) -> str:
    return f"host-{dp_rank}-{stage}"


def recorded(
    window: Window,
    clocks: Mapping[str, Clock],
    *,
    host_of: HostOf = worker_is_host,
    ends: Ends | None = None,
    step_s: float = 1.0,
) -> Window:
    """The window, its steps `step_s` apart, by each worker's host's clock."""
    trace, sizes = window.trace, window.job.parallelism
    position = np.searchsorted(window.steps, trace.step)
    true_ns = np.rint(position * step_s * NS + trace.start_s * NS).astype(np.int64)
    took_ns = np.rint(trace.duration_s * NS).astype(np.int64)
    if ends is not None:
        took_ns = np.maximum(took_ns + _unsteady(window, ends), 0)
    hosts = {
        (dp_rank, stage): host_of(dp_rank, stage)
        for dp_rank in range(sizes.dp_size)
        for stage in range(sizes.pp_size)
    }
    of_row = [
        clocks.get(hosts[worker], Clock())
        for worker in zip(trace.dp_rank.tolist(), trace.stage.tolist(), strict=True)
    ]
    offset_ns = np.array([clock.offset_ns for clock in of_row], np.int64)
    drift = np.array([clock.drift_ppm * 1e-6 for clock in of_row])
    start_ns = true_ns + offset_ns + np.rint(drift * true_ns).astype(np.int64)
    end_ns = true_ns + took_ns
    end_ns = end_ns + offset_ns + np.rint(drift * end_ns).astype(np.int64)
    origin_ns = np.array([start_ns[position == at].min() for at in range(len(window.steps))])
    shown = replace(
        trace,
        start_s=(start_ns - origin_ns[position]) * 1e-9,
        duration_s=(end_ns - start_ns) * 1e-9,
    )
    origin = tuple(int(each) + BEGAN_NS for each in origin_ns)
    return replace(window, trace=shown, hosts=hosts, origin_ns=origin)


def ended_together(window: Window) -> Window:
    """The window with all that meets ending at one moment: when its last member did."""
    trace, end_s = window.trace, window.trace.start_s + window.trace.duration_s
    for group in prepare(window).groups:
        graph, template = group.graph, group.template
        num_ops, dp_size = template.num_ops, group.dp_size
        names = zip(template.stage, template.optype, template.seq_id, strict=True)
        op_of = {name: op for op, name in enumerate(names)}
        rows = {step: np.full((num_ops, dp_size), -1) for step in group.steps}
        for row, step in enumerate(trace.step.tolist()):
            name = (trace.stage[row], trace.optype[row], trace.seq_id[row])
            if step in rows and name in op_of:
                rows[step][op_of[name], trace.dp_rank[row]] = row
        for unit in range(graph.meets.size):
            ops = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
            if ops[0] >= num_ops:
                continue
            for here in rows.values():
                members = here[ops].ravel() if graph.meets[unit] else None
                for each in [members] if members is not None else here[ops].T:
                    end_s[each] = end_s[each].max()
    return replace(window, trace=replace(trace, duration_s=end_s - trace.start_s))


def _unsteady(window: Window, ends: Ends) -> np.ndarray:
    """[rows] nanoseconds that operations which meet others take longer."""
    chance, trace, sizes = np.random.default_rng(ends.seed), window.trace, window.job.parallelism
    members = {
        Axis.NONE: 0,
        Axis.NEIGHBOUR: 2,
        Axis.STAGES: 2,
        Axis.DP: sizes.dp_size,
        Axis.EP: sizes.ep_size,
        Axis.DP_AND_STAGES: sizes.num_workers,
    }
    by_code = {code: members[spec.axis] for code, spec in window.job.op_types.by_code.items()}
    of_row = np.array([by_code[code] for code in trace.optype.tolist()])
    more_s = chance.normal(0.0, ends.jitter_s, trace.num_ops)
    is_late = chance.random(trace.num_ops) * np.maximum(of_row, 1) < ends.late_share
    more_s += ends.late_s * is_late
    return np.rint(np.where(of_row > 0, more_s, 0.0) * NS).astype(np.int64)
