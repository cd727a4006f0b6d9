"""Arrivals blocks made by hand, and a window with known arrivals."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from app.trace.window import Window, WindowState
from tests import window_factory
from tests.window_factory import Row, in_row

LATE = 2


def late_window(
    first_step: int = 0, *, dp_size: int = 4, late_s: float = 0.5, state: WindowState = "complete"
) -> Window:
    """Two steps of 2.2 s on one host a rank: one computation, one collective, rank 2 is late.

    All leave the collective together, so the others waited `late_s` for it.
    """
    rows = [
        row.on(dp_rank=dp_rank, step=step)
        for step in (first_step, first_step + 1)
        for dp_rank in range(dp_size)
        for row in _step(late_s if dp_rank == LATE else 0.0)
    ]
    made = window_factory.window(rows, dp_size=dp_size, state=state)
    hosts = {(dp_rank, 0): f"host-{dp_rank}" for dp_rank in range(dp_size)}
    return dataclasses.replace(made, hosts=hosts)


def _step(late_s: float) -> list[Row]:
    return [
        *in_row(("forward-compute", 1.0 + late_s)),
        *in_row(("grads-reduce-scatter", 1.0 - late_s), ("optimizer", 0.2), start_s=1.0 + late_s),
    ]


def block(
    waited_for_s: Sequence[float] = (0.0, 0.0, 0.5, 0.0),
    *,
    num_steps: int = 2,
    step_s: float = 2.2,
    culprits: Sequence[int] = (LATE,),
    members: int = 16,
) -> dict[str, Any]:
    """The block `arrivals`; rank i is dp rank i on host-i, all in one group."""
    ranks = list(range(len(waited_for_s)))
    total = sum(waited_for_s)
    waited_s = [total - own for own in waited_for_s]
    late_share = [1.0 if own else 0.0 for own in waited_for_s]
    most_first = sorted(ranks, key=lambda rank: -waited_for_s[rank])
    return {
        "num_occurrences": num_steps,
        "num_ranks": len(ranks),
        "largest_share": max(waited_for_s) / step_s,
        "waiting_share": sum(waited_s) / len(ranks) / step_s,
        "rank": ranks,
        "dp_rank": ranks,
        "stage": [0] * len(ranks),
        "host": [f"host-{rank}" for rank in ranks],
        "local_rank": [None] * len(ranks),
        "waited_for_s": list(waited_for_s),
        "waited_s": waited_s,
        "late_share": late_share,
        "own_delay_s": [own or None for own in waited_for_s],
        "groups": [
            {
                "name": "dp, stage 0",
                "axis": "dp",
                "ranks": ranks,
                "num_ranks": len(ranks),
                "num_occurrences": num_steps,
                "transfer_s": 0.5,
                "waited_s": sum(waited_s) / len(ranks),
                "bandwidth_bytes_s": None,
                "members": [
                    {
                        "rank": rank,
                        "local_rank": None,
                        "host": f"host-{rank}",
                        "waited_for_s": waited_for_s[rank],
                        "waited_s": waited_s[rank],
                        "late_share": late_share[rank],
                    }
                    for rank in most_first[:members]
                ],
            }
        ],
        "culprits": [
            {
                "rank": rank,
                "dp_rank": rank,
                "stage": 0,
                "host": f"host-{rank}",
                "local_rank": None,
                "group": "dp, stage 0",
                "axis": "dp",
                "kind": "compute",
                "waited_for_s": waited_for_s[rank],
                "share": waited_for_s[rank] / step_s,
                "late_share": late_share[rank],
                "steps_late": 1.0,
                "own_delay_s": waited_for_s[rank],
            }
            for rank in culprits
        ],
        "per_step": {"waited_for_s": [list(waited_for_s)] * num_steps},
    }
