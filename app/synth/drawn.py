"""What chance hands to the operations of some steps, before anybody waits for anybody."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import Direction
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Annotation:
    """A gc-pause inside a forward or backward computation, or a data-wait in the delay before it.

    Indices name the computation; `step` is a position in `Drawn.steps`.
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
class Drawn:
    """Durations and launch delays of some steps; faults change them in place.

    Shapes: computations, the delays before them, and transfers between stages [stages, chunks,
    micro-batches, steps, dp ranks], a transfer under its receiver's stage and chunk; `once_s` and
    `once_delay_s`, operations at a step's ends, {op type: [stages, chunks, steps, dp ranks]} with
    size 1 for chunks where there is one a stage, and for every axis that a collective spans (one
    transfer for all its members); `tokens` and `seq_len_sq` [micro-batches, steps, dp ranks];
    `sm_clock_mhz` and `temperature_c` [stages, steps, dp ranks]; `is_silent` [stages, steps, dp
    ranks], the worker reports nothing of the step. All times in seconds.

    Where backwards are split, `backward_s` is still the whole of one, `backward_delay_s` the delay
    before its first half, and `weight_share` and `weight_delay_s` are those of its second half,
    all of the shape of computations. `p2p_delay_s` {op type: that shape}, 0 where there is none.
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
    annotations: list[Annotation] = field(default_factory=list)
    weight_share: Floats | None = None
    weight_delay_s: Floats | None = None
    p2p_delay_s: dict[str, Floats] = field(default_factory=dict)
