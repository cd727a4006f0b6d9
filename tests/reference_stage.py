"""Operations of one stage of a replica, and their traits by docs/replay.md."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from app.trace.job import Parallelism
from tests.reference_ops import Key, Op, backwards, is_on_compute_stream, is_own, numbered, of

# Section 5: 50 us separate two operations, 1 us is clock rounding.
CLEARLY_S = 50e-6
ROUNDING_S = 1e-6

GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
REDUCE = "separate-grads-all-reduce"
GRADIENTS = (SCATTER, REDUCE)
ALWAYS_ON_A_STREAM = ("forward-send", "forward-recv", "backward-send", "backward-recv")


@dataclass
class Stage:
    """The operations of one stage, in recorded order."""

    number: int
    ops: list[Op]
    sizes: Parallelism
    overlapped: bool  # the replica has separate-grads-all-reduces, on whichever stage
    # The operations of every dp rank and step of this structure.
    lanes: list[dict[Key, Op]] = field(default_factory=list)

    @cached_property
    def computes(self) -> list[Op]:
        return [op for op in self.ops if is_on_compute_stream(op)]

    @cached_property
    def overlapping_types(self) -> set[str]:
        """Types of gradients and parameters that are exchanged while the stage computes."""
        if not self.sizes.is_data_parallel:
            return set()
        found = {optype for optype in GRADIENTS if self._reduced_early(optype)}
        return found | ({GATHER} if self._gathered_late() else set())

    def _reduced_early(self, optype: str) -> bool:
        everything = backwards(self.ops)
        for op in of(self.ops, optype):
            ends_s = [each.end_s for each in everything if each.mc == op.mc]
            if optype != SCATTER or not self.overlapped:
                ends_s = []
            ends_s = ends_s or [each.end_s for each in everything]
            if ends_s and op.start_s < max(ends_s) - CLEARLY_S:
                return True
        return False

    def _gathered_late(self) -> bool:
        for op in of(self.ops, GATHER):
            forwards = [each for each in of(self.ops, "forward-compute") if each.mc == op.mc]
            if forwards and op.start_s > forwards[0].start_s + CLEARLY_S:
                return True
        return False

    @cached_property
    def has_two_dp_streams(self) -> bool:
        for one, other in pairwise(of(self.ops, GATHER, SCATTER)):
            starts_early = other.start_s < one.end_s - CLEARLY_S
            if one.optype != other.optype and starts_early:
                return True
        return False

    def stream(self, op: Op) -> str:
        """Operations of one stream run one after the other; those of "" do not."""
        if is_on_compute_stream(op) or op.optype in ALWAYS_ON_A_STREAM or is_own(op):
            return op.spec.stream
        if op.optype in (GATHER, SCATTER) and self.sizes.is_data_parallel:
            return op.optype if self.has_two_dp_streams else op.spec.stream
        return REDUCE if op.optype == REDUCE and REDUCE in self.overlapping_types else ""

    @cached_property
    def streams(self) -> dict[str, list[Op]]:
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            if stream := self.stream(op):
                found.setdefault(stream, []).append(op)
        return found

    @cached_property
    def end_of_step(self) -> list[Op]:
        """Serial operations after the computation."""
        chain = [op for op in of(self.ops, "gc") if op.key.seq_id == 0]
        chain += numbered(self.ops, "layernorm-grads-all-reduce")
        if self.number in (0, self.sizes.pp_size - 1):
            chain += numbered(self.ops, "embedding-grads-all-reduce")
        gradients = REDUCE if self.overlapped else SCATTER
        if self.sizes.is_data_parallel and gradients not in self.overlapping_types:
            chain += numbered(self.ops, gradients)
        chain += numbered(self.ops, "optimizer-clip-main-grad")
        return chain + numbered(self.ops, "optimizer")
