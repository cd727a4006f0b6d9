"""Which operation of a step waits for which, on one replica of a job.

Written from section 3 of the published dependency model (Lin et al., OSDI 2025). All replicas and
steps have the same graph; operations that synchronise over dp ranks are marked.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import OP_CODES
from benchmarks.strangers.shape import Compute, Shape

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FORWARD, BACKWARD = OP_CODES["forward-compute"], OP_CODES["backward-compute"]
OPTIMIZER = OP_CODES["optimizer"]
P2P = tuple(
    OP_CODES[f"{direction}-{end}"]
    for direction in ("forward", "backward")
    for end in ("send", "recv")
)
# Shares of the last backward at which DDP's buckets are ready.
BUCKET_SHARES = (0.3, 0.55, 0.8)
# In place of a share: an operation is posted without waiting for the other one, but its transfer
# begins only after that one's end, as where a communicator has one queue.
QUEUED = 2.0


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Operations of one replica in one step, and what each waits for.

    Shapes: `optype`, `stage`, `seq_id`, `mc`, `mb` are [ops]. Operation i waits for `dep[a:b]`
    with a, b = `dep_ptr[i : i + 2]`: for their end, or for `share` of their duration. Members of a
    unit, `member[a:b]` with a, b = `unit_ptr[u : u + 2]`, start their transfer together; those of a
    unit of `is_synced` also over all dp ranks. Units are in topological order. `weight` [ops] is
    the part of its type's usual duration that an operation takes. Parts of one computation that is
    recorded as a whole have its number in `span` [ops], others -1. `waits` [waits, 2]: when the
    first operation has ended, the computation waits for the second, and the client records that.
    """

    optype: Ints
    stage: Ints
    seq_id: Ints
    mc: Ints
    mb: Ints
    dep_ptr: Ints
    dep: Ints
    share: Floats
    unit_ptr: Ints
    member: Ints
    is_synced: Flags
    is_communication: Flags
    unit_of: Ints
    weight: Floats
    span: Ints
    waits: Ints

    @property
    def num_ops(self) -> int:
        """Operations of one replica in one step."""
        return int(self.optype.size)

    def members(self, unit: int) -> Ints:
        """Operations of a unit."""
        return self.member[self.unit_ptr[unit] : self.unit_ptr[unit + 1]]

    def of(self, *optypes: int) -> Flags:
        """[ops], whether an operation is of one of these types."""
        return np.isin(self.optype, optypes)


class GraphBuilder:
    """Collects operations, what they wait for, and which end together."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.deps: list[list[tuple[int, float]]] = []
        self.groups: dict[Any, list[int]] = defaultdict(list)
        self.synced: set[Any] = set()
        self.weights: dict[int, float] = {}
        self.spans: dict[int, int] = {}
        self.waits: list[tuple[int, int]] = []
        self._counts: dict[tuple[int, int], int] = defaultdict(int)

    def add(self, optype: str, stage: int, after: list[int], mc: int = -1, mb: int = -1) -> int:
        """The number of a new operation, which waits for the ends of others; -1 is none."""
        code = OP_CODES[optype]
        seq_id = self._counts[code, stage]
        self._counts[code, stage] += 1
        self.rows.append((code, stage, seq_id, mc, mb))
        self.deps.append([(each, 1.0) for each in after if each >= 0])
        return len(self.rows) - 1

    def collective(self, optype: str, stage: int, after: list[int], mc: int = -1) -> int:
        """A collective of all dp ranks of one stage."""
        number = self.add(optype, stage, after, mc)
        self.groups["dp", number].append(number)
        self.synced.add(("dp", number))
        return number

    def build(self) -> StepGraph:
        """The graph, with units in topological order.

        Raises:
            ValueError: operations wait for each other in a circle.
        """
        grouped = {each for members in self.groups.values() for each in members}
        units = [(key, members) for key, members in self.groups.items()]
        units += [(None, [each]) for each in range(len(self.rows)) if each not in grouped]
        units = [units[each] for each in self._topological([members for _, members in units])]
        columns = np.array(self.rows, np.int64).T
        unit_of = np.empty(len(self.rows), np.int64)
        for number, (_, members) in enumerate(units):
            unit_of[members] = number
        compute = [OP_CODES[name] for name in ("gc", "optimizer")] + [FORWARD, BACKWARD]
        optype, stage, seq_id, mc, mb = columns
        return StepGraph(
            optype,
            stage,
            seq_id,
            mc,
            mb,
            _pointers(self.deps),
            np.array([each for deps in self.deps for each, _ in deps], np.int64),
            np.array([share for deps in self.deps for _, share in deps]),
            _pointers([members for _, members in units]),
            np.array([each for _, members in units for each in members], np.int64),
            np.array([key in self.synced for key, _ in units]),
            ~np.isin(columns[0], compute),
            unit_of,
            np.array([self.weights.get(number, 1.0) for number in range(len(self.rows))]),
            np.array([self.spans.get(number, -1) for number in range(len(self.rows))]),
            np.array(self.waits, np.int64).reshape(-1, 2),
        )

    def _topological(self, units: list[list[int]]) -> list[int]:
        unit_of = {each: number for number, members in enumerate(units) for each in members}
        waits_for = [
            {unit_of[dep] for each in members for dep, _ in self.deps[each]} for members in units
        ]
        followers: list[list[int]] = [[] for _ in units]
        for number, needed in enumerate(waits_for):
            for each in needed:
                followers[each].append(number)
        left = [len(needed) for needed in waits_for]
        ready = deque(number for number, count in enumerate(left) if not count)
        found = []
        while ready:
            found.append(ready.popleft())
            for each in followers[found[-1]]:
                left[each] -= 1
                if not left[each]:
                    ready.append(each)
        if len(found) < len(units):
            raise ValueError("operations wait for each other in a circle")
        return found


def build_graph(shape: Shape, *, posts_late: bool = False) -> StepGraph:
    """The graph of a job of this shape.

    With `posts_late` a receive is posted once the computation before its own has ended, as where
    one thread makes all calls in the order of the schedule; else as early as the model has it.
    """
    builder = GraphBuilder()
    last_computes = [_add_stage(builder, shape, stage, posts_late) for stage in range(shape.pp)]
    for stage, (last, last_backwards) in enumerate(last_computes):
        _add_end(builder, shape, stage, last, last_backwards)
    return builder.build()


def _add_stage(
    builder: GraphBuilder, shape: Shape, stage: int, posts_late: bool
) -> tuple[int, dict[int, int]]:
    """Computations and transfers; the last computation, and the last backward of each chunk."""
    gathers = _add_gathers(builder, shape, stage)
    order = shape.order(stage)
    first_backward = next(k for k, each in enumerate(order) if not each.is_forward)
    last = {True: -1, False: -1}  # of each direction
    stream = dict.fromkeys(((forward, end) for forward in last for end in ("send", "recv")), -1)
    computes: list[int] = []
    last_backwards: dict[int, int] = {}
    for k, each in enumerate(order):
        early = computes[-1] if posts_late and computes else -1
        if not each.is_forward and last[False] < 0 and first_backward >= 2:
            early = computes[first_backward - 2]
        received = _add_transfer(
            builder, shape, stage, each, "recv", [last[each.is_forward], early], stream
        )
        gather = gathers.pop(each.chunk, -1) if each.is_forward else -1
        number = builder.add(
            "forward-compute" if each.is_forward else "backward-compute",
            stage,
            [computes[-1] if k else -1, received, gather],
            each.chunk,
            each.microbatch,
        )
        computes.append(number)
        last[each.is_forward] = number
        if not each.is_forward:
            last_backwards[each.chunk] = number
        _add_transfer(builder, shape, stage, each, "send", [number], stream)
    return computes[-1], last_backwards


def _add_transfer(
    builder: GraphBuilder,
    shape: Shape,
    stage: int,
    compute: Compute,
    end: str,
    after: list[int],
    stream: dict[tuple[bool, str], int],
) -> int:
    """The receive before, or the send after a computation; -1 at the ends of the model."""
    here = compute.chunk * shape.pp + stage
    forward = compute.is_forward
    down = here if (end == "send") == forward else here - 1  # the lower chunk of the pair
    if not 0 <= down < shape.pp * shape.chunks - 1 or shape.pp == 1:
        return -1
    name = f"{'forward' if forward else 'backward'}-{end}"
    number = builder.add(
        name, stage, [*after, stream[forward, end]], compute.chunk, compute.microbatch
    )
    stream[forward, end] = number
    builder.groups["pair", forward, compute.microbatch, down].append(number)
    return number


def _add_gathers(builder: GraphBuilder, shape: Shape, stage: int) -> dict[int, int]:
    """params-all-gather of each chunk, one after the other."""
    found: dict[int, int] = {}
    if shape.dp > 1 and shape.has_gathers:
        previous = -1
        for chunk in range(shape.chunks):
            previous = builder.collective("params-all-gather", stage, [previous], chunk)
            found[chunk] = previous
    return found


def _add_end(
    builder: GraphBuilder, shape: Shape, stage: int, last: int, last_backwards: dict[int, int]
) -> None:
    """From the last computation to the optimizer."""
    early = _early_gradients(builder, shape, stage, last_backwards)
    chain = [builder.add("gc", stage, [last])] if shape.has_small_reductions else [last]
    if shape.has_small_reductions:
        ready = [*chain, *early[-1:]] if shape.gradients == "overlapped" else chain
        chain = [builder.add("layernorm-grads-all-reduce", stage, ready)]
        if stage in (0, shape.pp - 1):
            chain = [builder.add("embedding-grads-all-reduce", stage, chain)]
            builder.groups["embedding"] += chain
    if shape.dp > 1 and shape.gradients == "plain":
        for chunk in range(shape.chunks):
            chain = [builder.collective("grads-reduce-scatter", stage, chain, chunk)]
    if shape.dp > 1 and shape.gradients == "overlapped":
        chain = [builder.collective("separate-grads-all-reduce", stage, [*chain, *early])]
    if shape.gradients == "buckets":
        chain += early[-1:]
    if shape.has_clip:
        chain = [builder.add("optimizer-clip-main-grad", stage, chain)]
        builder.groups["clip"] += chain
        builder.synced.add("clip")
    builder.add("optimizer", stage, chain)


def _early_gradients(
    builder: GraphBuilder, shape: Shape, stage: int, last_backwards: dict[int, int]
) -> list[int]:
    """Gradients that are exchanged before the last computation has ended."""
    found: list[int] = []
    if shape.dp == 1:
        return found
    if shape.gradients == "overlapped":
        for chunk, backward in sorted(last_backwards.items(), reverse=True):
            after = [backward, *found[-1:]]
            found.append(builder.collective("grads-reduce-scatter", stage, after, chunk))
    if shape.gradients == "buckets":
        backward = last_backwards[0]
        for share in (*BUCKET_SHARES, 1.0):
            number = builder.collective("separate-grads-all-reduce", stage, found[-1:])
            builder.deps[number].append((backward, share))
            found.append(number)
    return found


def _pointers(of_each: list[Any]) -> Ints:
    return np.concatenate([[0], np.cumsum([len(each) for each in of_each])]).astype(np.int64)
