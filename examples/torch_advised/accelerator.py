"""An accelerator on which kernels queue: a delayed host is caught up with, a stopped one is not.

Two cores cannot compute for four ranks, but four ranks can wait on them. A GPU's kernels do not
take longer where the machine is busy with something else, unless their launches come too late.
"""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from examples.torch_pipeline.model import LAYER_S, Pace

AHEAD_S = 0.02  # by which the host launches kernels before they run


class Accelerator(Pace):
    """Computes each pass in the sum of its layers' times, however late single ones are launched.

    A host that is stopped for longer than `AHEAD_S` leaves the queue empty, and the pass longer.
    """

    def __init__(self, layer_s: float) -> None:
        super().__init__(slowdown=layer_s / LAYER_S)
        self._free_s = 0.0

    def watch(self, module: nn.Module) -> None:
        """Let every forward and every backward of a module begin with an empty queue."""
        module.register_forward_pre_hook(self._begin_pass)
        module.register_full_backward_pre_hook(self._begin_pass)

    def compute(self, took_s: float) -> None:
        """Return when the queue has been computed, and then this for so long."""
        now_s = time.perf_counter()
        self._free_s = max(self._free_s, now_s - AHEAD_S) + took_s
        if self._free_s > now_s:
            time.sleep(self._free_s - now_s)

    def _begin_pass(self, *_: Any) -> None:
        self._free_s = time.perf_counter()
