"""Published traces as arrays of the event simulation, to be measured and simulated again."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import OP_CODES
from app.trace.readers.published import trace_files
from app.trace.window import Window
from benchmarks.strangers.graph import P2P, StepGraph, build_graph
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Durations, Floats, Simulated, simulate

TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"
# Sizes are in their meta files; both run 1F1B and reduce gradients after the last computation.
NAMES = ("AR", "ST")
AFTER_COMPUTING = tuple(
    OP_CODES[name]
    for name in (
        "layernorm-grads-all-reduce",
        "embedding-grads-all-reduce",
        "grads-reduce-scatter",
        "optimizer-clip-main-grad",
    )
)


class OtherForm(Exception):
    """The trace does not have the operations that a job of its sizes would have."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published trace: `row` [steps, ops, dp ranks] is the place of each operation in it."""

    window: Window
    shape: Shape
    graph: StepGraph
    row: NDArray[np.int64]

    @classmethod
    def read(cls, name: str, folder: Path = TRACES) -> "Published":
        """The trace of this name.

        Raises:
            OtherForm: it is not of the form that the generator makes.
        """
        window = trace_files.read(folder / f"trace-{name}.parquet")
        sizes, trace = window.job.parallelism, window.trace
        microbatches = int(trace.mb_id.max()) + 1
        shape = Shape(sizes.dp_size, sizes.pp_size, microbatches, tp=sizes.tp_size)
        graph = build_graph(shape, posts_late=True)
        number = {
            key: op
            for op, key in enumerate(
                zip(graph.optype.tolist(), graph.stage.tolist(), graph.seq_id.tolist(), strict=True)
            )
        }
        rows = zip(trace.optype.tolist(), trace.stage.tolist(), trace.seq_id.tolist(), strict=True)
        ops = np.array([number.get(key, -1) for key in rows])
        row = np.full((len(window.steps), graph.num_ops, shape.dp), -1)
        row[np.searchsorted(window.steps, trace.step), ops, trace.dp_rank] = np.arange(ops.size)
        if (ops < 0).any() or (row < 0).any():
            raise OtherForm(
                f"{name}: {int((ops < 0).sum())} rows more, {int((row < 0).sum())} less"
            )
        return cls(window, shape, graph, row)

    def recorded(self) -> Simulated:
        """Starts and ends as recorded."""
        start_s = self.window.trace.start_s[self.row]
        return Simulated(start_s, start_s + self.window.trace.duration_s[self.row], False)

    def durations(self) -> Durations:
        """What operations took by themselves, and how late they were launched."""
        graph, seen = self.graph, self.recorded()
        own = seen.end_s - seen.start_s
        for unit in range(graph.is_synced.size):
            members = graph.members(unit)
            if len(members) == 1 and not graph.is_synced[unit]:
                continue
            latest = seen.start_s[:, members].max(axis=1)
            if graph.is_synced[unit]:
                latest = np.broadcast_to(latest.max(axis=1, keepdims=True), latest.shape)
            own[:, members] = np.maximum(seen.end_s[:, members] - latest[:, None], 0.0)
        gap = np.zeros((own.shape[0], self.shape.pp, self.shape.dp))
        return Durations(own, self._launch(seen), gap, False)

    def _launch(self, seen: Simulated) -> Floats:
        """Recorded start less the latest end of what the operation waits for.

        When a receive is posted is no delay of its own. After the last computation, workers wait
        for each other in operations that the traces lack: what all of them take counts.
        """
        graph = self.graph
        origin = seen.start_s.min(axis=(1, 2))[:, None]
        found = np.zeros_like(seen.start_s)
        for op in np.flatnonzero(~graph.of(*P2P)).tolist():
            deps = graph.dep[graph.dep_ptr[op] : graph.dep_ptr[op + 1]]
            ready = seen.end_s[:, deps].max(axis=1) if deps.size else origin
            found[:, op] = np.maximum(seen.start_s[:, op] - ready, 0.0)
        for optype in AFTER_COMPUTING:
            ops = graph.of(optype)
            found[:, ops] = found[:, ops].min(axis=(1, 2), keepdims=True)
        return found

    def simulated_again(self, durations: Durations) -> tuple[Window, float]:
        """The window with the times of a simulation, and the mean step of it in seconds."""
        simulated = simulate(self.graph, durations)
        trace = self.window.trace
        start_s, duration_s = trace.start_s.copy(), trace.duration_s.copy()
        start_s[self.row] = simulated.start_s
        duration_s[self.row] = simulated.end_s - simulated.start_s
        trace = replace(trace, start_s=start_s, duration_s=duration_s)
        return replace(self.window, trace=trace), simulated.step_s
