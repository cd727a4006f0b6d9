"""Faults to inject, one at a time."""

from __future__ import annotations

import gc
import random
import time
from dataclasses import dataclass

PAUSE_S = 0.15


@dataclass(frozen=True)
class Fault:
    """One fault from the first step on; omitted fields are healthy."""

    slow_rank: int = -1
    slowdown: float = 1.0
    uneven_dp_rank: int = -1  # its rows have sequences of uneven lengths
    last_stage_layers: int = 2
    pauses: bool = False


FAULTS = {
    "none": Fault(),
    "slow-rank": Fault(slow_rank=1, slowdown=2.2),
    "long-sequences": Fault(uneven_dp_rank=1),
    "long-last-stage": Fault(last_stage_layers=4),
    "gc-pauses": Fault(pauses=True),
}


class _Held:
    """Garbage that is slow to collect."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(PAUSE_S)


def collect_now_and_then(step: int, rank: int, world_size: int, microbatch: int) -> None:
    """In two steps of three, one worker (a different one each time) collects in a forward."""
    draw = random.Random(step)  # noqa: S311
    if step % 3 == 2 or (draw.randrange(world_size), draw.randrange(2)) != (rank, microbatch):
        return
    _Held()
    gc.collect()
