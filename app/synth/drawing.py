"""Draws the random durations and launch delays of some steps, without waits between workers.

Every step has a random generator of its own, so its values do not depend on the other steps that
are drawn with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.synth.costs import OperationCosts
from app.trace.job import Parallelism
from app.trace.ops import Direction
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Interruption:
    """A gc-pause inside a forward or backward computation, or a data-wait in the delay before it.

    Indices are those of the computation; `step` is a position in `DrawnSteps.steps`.
    """

    name: str
    duration_s: float
    direction: Direction
    stage: int
    chunk: int
    microbatch: int
    step: int
    dp_rank: int


@dataclass(slots=True)
class DrawnSteps:
    """Durations and launch delays of some steps, in seconds; faults change them in place.

    Shapes:
        Computations, the delays before them, and transfers between stages (by the receiver's stage
        and chunk): [stages, chunks, micro-batches, steps, dp ranks].
        `once_s` and `once_delay_s`, operations at the ends of a step: {op type: [stages, chunks,
        steps, dp ranks]}; the size is 1 for the chunks of operations without a chunk, and for axes
        that a collective spans (one transfer for all members).
        `tokens` and `seq_len_sq`: [micro-batches, steps, dp ranks].
        `sm_clock_mhz`, `temperature_c`, and `is_silent` (the worker reports nothing of the step):
        [stages, steps, dp ranks].

    If backward computations are split, `backward_s` is that of both halves and `backward_delay_s`
    the delay before the first half. `weight_share` is the share of the second half and
    `weight_delay_s` the delay before it, in the shape of computations, as is `p2p_delay_s` {op
    type: delays}.
    """

    steps: Ints
    forward_s: Floats
    backward_s: Floats
    forward_delay_s: Floats
    backward_delay_s: Floats
    forward_transfer_s: Floats
    backward_transfer_s: Floats
    once_s: dict[str, Floats]
    once_delay_s: dict[str, Floats]
    is_silent: NDArray[np.bool_]
    tokens: Ints | None = None
    seq_len_sq: Ints | None = None
    sm_clock_mhz: Ints | None = None
    temperature_c: Ints | None = None
    interruptions: list[Interruption] = field(default_factory=list)
    weight_share: Floats | None = None
    weight_delay_s: Floats | None = None
    p2p_delay_s: dict[str, Floats] = field(default_factory=dict)


Shape = tuple[int, ...]

P2P_OPS = ("forward-send", "forward-recv", "backward-send", "backward-recv")


@dataclass(frozen=True, slots=True)
class DrawLayout:
    """Arrays that share one row of random numbers per step; dp ranks are their last axis."""

    shapes: dict[str, Shape]

    @property
    def size(self) -> int:
        """Number of random numbers per step."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def cut(self, numbers: Floats) -> dict[str, Floats]:
        """The numbers [steps, size] as arrays with the last axes steps and dp ranks."""
        arrays, first = {}, 0
        for name, shape in self.shapes.items():
            end = first + int(np.prod(shape))
            array = numbers[:, first:end].reshape(len(numbers), *shape)
            arrays[name] = np.ascontiguousarray(np.moveaxis(array, 0, -2))
            first = end
        return arrays


@dataclass(frozen=True)
class StepDrawing:
    """The drawing of a job's steps; with `splits` its backward computations have two halves."""

    parallelism: Parallelism
    num_microbatches: int
    costs: OperationCosts
    splits: bool

    def draw(self, steps: Sequence[int], seed: int) -> DrawnSteps:
        """The steps of a healthy job."""
        computed, transferred, delays = self._numbers(steps, seed)
        forward, backward = (
            self.costs.computation_s(direction, self.parallelism)[:, :, None, None, None]
            for direction in (Direction.FORWARD, Direction.BACKWARD)
        )
        drawn = DrawnSteps(
            steps=np.asarray(steps, np.int64),
            forward_s=computed.pop("forward") * forward,
            backward_s=computed.pop("backward") * backward,
            forward_delay_s=delays.pop("forward"),
            backward_delay_s=delays.pop("backward"),
            forward_transfer_s=transferred.pop("forward") * self.costs.stage_transfer_s,
            backward_transfer_s=transferred.pop("backward") * self.costs.stage_transfer_s,
            once_s={},
            once_delay_s={},
            is_silent=np.zeros((self._pp_size, len(steps), self._dp_size), np.bool_),
            p2p_delay_s={name: delays.pop(name) for name in P2P_OPS if name in delays},
        )
        if self.splits:
            self._split(drawn, computed.pop("weight"), backward)
            drawn.weight_delay_s = delays.pop("weight")
        once = self.costs.once_s
        for name, factors in {**computed, **transferred}.items():
            drawn.once_s[name] = factors * once[name]
        drawn.once_delay_s |= delays
        return drawn

    def _split(self, drawn: DrawnSteps, weight: Floats, backward_s: Floats) -> None:
        """Make both halves of backward computations vary independently."""
        share = self.costs.weight_share
        drawn.backward_s *= 1 - share
        weight *= backward_s * share
        drawn.backward_s += weight
        weight /= np.where(drawn.backward_s > 0, drawn.backward_s, 1.0)
        drawn.weight_share = weight

    def _numbers(self, steps: Sequence[int], seed: int) -> tuple[dict[str, Floats], ...]:
        costs = self.costs
        kinds = self._computed, self._transferred, self._delayed
        numbers = [np.empty((len(steps), layout.size)) for layout in kinds]
        for position, step in enumerate(steps):
            rng = np.random.default_rng([seed, step])
            compute, transfer, delay = (rows[position] for rows in numbers)
            compute[:] = costs.tail.factors(costs.noise, compute.size, rng)
            transfer[:] = costs.tail.factors(costs.transfer_noise, transfer.size, rng)
            rng.standard_exponential(out=delay)
            delay *= costs.launch_delay_s
        return tuple(layout.cut(rows) for layout, rows in zip(kinds, numbers, strict=True))

    @cached_property
    def _computed(self) -> DrawLayout:
        names = ["forward", "backward"] + ["weight"] * self.splits
        once = dict.fromkeys(("gc", "optimizer"), (self._pp_size, 1, self._dp_size))
        return DrawLayout(dict.fromkeys(names, self._computations) | once)

    @cached_property
    def _transferred(self) -> DrawLayout:
        """The members of a collective share one number."""
        stages, chunks, dp_ranks = self._pp_size, self.parallelism.vpp_size, self._dp_size
        shapes: dict[str, Shape] = dict.fromkeys(("forward", "backward"), self._computations)
        shapes["layernorm-grads-all-reduce"] = (stages, 1, dp_ranks)
        shapes["optimizer-clip-main-grad"] = (1, 1, 1)
        if stages > 1:
            shapes["embedding-grads-all-reduce"] = (1, 1, dp_ranks)
        if self.parallelism.is_data_parallel:
            shapes["params-all-gather"] = (stages, chunks, 1)
            shapes["grads-reduce-scatter"] = (stages, chunks, 1)
        return DrawLayout(shapes)

    @cached_property
    def _delayed(self) -> DrawLayout:
        names = ["forward", "backward"] + ["weight"] * self.splits
        if self._pp_size > 1:
            names += P2P_OPS
        shapes: dict[str, Shape] = dict.fromkeys(names, self._computations)
        for name, shape in (self._transferred.shapes | self._computed.shapes).items():
            if name not in shapes:
                shapes[name] = (self._pp_size, shape[1], self._dp_size)
        return DrawLayout(shapes)

    @property
    def _computations(self) -> Shape:
        """The shape of one number per computation."""
        chunks = self.parallelism.vpp_size
        return self._pp_size, chunks, self.num_microbatches, self._dp_size

    @property
    def _pp_size(self) -> int:
        return self.parallelism.pp_size

    @property
    def _dp_size(self) -> int:
        return self.parallelism.dp_size
