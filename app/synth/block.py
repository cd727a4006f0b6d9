"""Some steps of a made job, by the true clock."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.synth.drawn import Drawn
from app.synth.structure import Structure
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class Block:
    """What was drawn for the steps, and what came of it.

    Shapes: `start_s` and `end_s` [ops, steps, dp ranks], seconds from the beginning of each step,
    in the order of `structure.ops`.
    """

    structure: Structure
    drawn: Drawn
    start_s: Floats
    end_s: Floats

    def step_s(self) -> Floats:
        """[steps], from the beginning of each step to its latest end."""
        return np.asarray(self.end_s.max(axis=(0, 2)))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns of the steps' trace, as arrays that broadcast to [steps, dp ranks, ops]."""
        sizes = self.structure.parallelism
        of_replica = self.structure.columns
        dp_rank = np.arange(sizes.dp_size)[:, None]
        ranks_each = sizes.tp_size * sizes.dsp_size
        return {
            **of_replica,
            "step": self.drawn.steps[:, None, None],
            "dp_rank": dp_rank,
            "rank": (of_replica["stage"] * sizes.dp_size + dp_rank) * ranks_each,
            "start_s": self.start_s.transpose(1, 2, 0),
            "duration_s": (self.end_s - self.start_s).transpose(1, 2, 0),
        }
