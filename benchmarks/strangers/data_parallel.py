"""Steps of DDP and FSDP as PyTorch runs them, on one stage: what is beside the computation.

Written from what the client says that it records (docs/feeds/torch.md): no micro-batches or chunks,
DDP's buckets from their post on, FSDP's forward and backward as wholes that contain the waits for
gathers and scatters.
"""

from benchmarks.strangers.graph import QUEUED, GraphBuilder, StepGraph
from benchmarks.strangers.shape import Shape

GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"


def build_ddp(shape: Shape) -> StepGraph:
    """Gradient buckets are posted during the last backward and reduced one after the other.

    Where the backward `is_held`, it goes on only once the bucket that it posted is reduced.
    """
    builder = GraphBuilder()
    last = -1
    for microbatch in range(shape.microbatches):
        last = builder.add("forward-compute", 0, [last], mb=microbatch)
        if not shape.is_held or microbatch < shape.microbatches - 1:
            last = builder.add("backward-compute", 0, [last], mb=microbatch)
    bucket, ready = -1, 0.0
    for share in shape.bucket_shares:
        if shape.is_held:
            last = builder.add("backward-compute", 0, [last, bucket], mb=shape.microbatches - 1)
            builder.weights[last], builder.spans[last] = share - ready, 0
        after = bucket if shape.starts_in_queue else -1
        posted = builder.collective(SCATTER, 0, [after])
        builder.deps[posted].append((last, 1.0 if shape.is_held else share))
        if bucket >= 0:
            builder.deps[posted].append((bucket, QUEUED))
        builder.weights[posted] = share - ready
        bucket, ready = posted, share
    builder.waits.append((last, bucket))
    _add_end(builder, shape, [last, bucket])
    return builder.build()


def build_fsdp(shape: Shape) -> StepGraph:
    """Every unit's parameters are gathered before its forward and its backward.

    The gather of a unit is posted when the unit before the one before it has been computed, or
    earlier with a greater `prefetch`. The last unit's parameters are kept for its backward.
    After a unit's backward its gradients are scattered; before that, the computation waits for the
    scatter of the unit before, and in the end for the last one.
    """
    units = _Units(shape)
    last = -1
    for microbatch in range(shape.microbatches):
        last = units.add_forward(microbatch, last)
        is_reduced = shape.reduces_each or microbatch == shape.microbatches - 1
        last = units.add_backward(microbatch, last, is_reduced=is_reduced)
    _add_end(units.builder, shape, [last])
    return units.builder.build()


def _add_end(builder: GraphBuilder, shape: Shape, ready: list[int]) -> None:
    if shape.has_clip:
        ready = [builder.add("optimizer-clip-main-grad", 0, ready)]
        builder.groups["clip"] += ready
        builder.synced.add("clip")
    builder.add("optimizer", 0, ready)


class _Units:
    """Adds forwards and backwards unit by unit; the newest gather and scatter."""

    def __init__(self, shape: Shape) -> None:
        self.builder = GraphBuilder()
        self._shape = shape
        self._gather = self._scatter = -1
        self._spans = 0

    def add_forward(self, microbatch: int, after: int) -> int:
        """The last operation of a forward."""
        self._spans += 1
        last = self._part("forward-compute", microbatch, [after], 0.0)
        order = list(range(len(self._shape.unit_weights)))
        gathers: list[int] = []
        for place, unit in enumerate(order):
            self._gather_ahead(gathers, order[: place + 1 + self._shape.prefetch], last)
            self.builder.waits.append((last, gathers[place]))
            weight = self._shape.unit_weights[unit]
            last = self._part("forward-compute", microbatch, [last, gathers[place]], weight)
        return last

    def add_backward(self, microbatch: int, after: int, *, is_reduced: bool) -> int:
        """The last operation of a backward."""
        self._spans += 1
        last = self._part("backward-compute", microbatch, [after], 0.0)
        order = list(reversed(range(len(self._shape.unit_weights))))
        gathers = [-1]  # the last unit's parameters are still there
        scatters = [-1, -1]
        for place, unit in enumerate(order):
            self._gather_ahead(gathers, order[: place + 1 + self._shape.prefetch], last)
            needed = [op for op in (scatters[-2], gathers[place]) if op >= 0]
            self.builder.waits += [(last, op) for op in needed]
            weight = self._shape.unit_weights[unit]
            last = self._part("backward-compute", microbatch, [last, *needed], weight)
            if is_reduced:
                scatters.append(self._scattered(unit, last))
        if is_reduced:
            needed = [op for op in scatters[-2:] if op >= 0]
            self.builder.waits += [(last, op) for op in needed]
            last = self._part("backward-compute", microbatch, [last, *needed], 0.0)
        return last

    def _part(self, optype: str, microbatch: int, after: list[int], weight: float) -> int:
        number = self.builder.add(optype, 0, after, mb=microbatch)
        self.builder.weights[number] = weight
        self.builder.spans[number] = self._spans - 1
        return number

    def _gather_ahead(self, gathers: list[int], units: list[int], after: int) -> None:
        """Post the gathers of these units that were not posted yet, in order."""
        for unit in units[len(gathers) :]:
            needed = [after, self._gather]
            if self._shape.has_one_queue:
                needed.append(self._scatter)
            self._gather = self._collective(GATHER, unit, needed)
            gathers.append(self._gather)

    def _scattered(self, unit: int, computed: int) -> int:
        after = [computed, self._scatter]
        if self._shape.has_one_queue:
            after.append(self._gather)
        self._scatter = self._collective(SCATTER, unit, after)
        return self._scatter

    def _collective(self, optype: str, unit: int, after: list[int]) -> int:
        number = self.builder.collective(optype, 0, after)
        self.builder.weights[number] = self._shape.unit_weights[unit]
        return number
