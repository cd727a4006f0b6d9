"""DDP with one slow rank, as CUDA events see it: buckets inside the backward.

Free: the backward computes on while a bucket waits for the slow rank. Held up: the waiting NCCL
kernel keeps the rank's computation from running until the last one has come.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from app.trace.window import Window
from tests import window_factory
from tests.window_factory import Row

FORWARD_S, BACKWARD_S, OPTIMIZER_S, TRANSFER_S = 0.100, 0.200, 0.010, 0.002
BUCKETS = 8


def ddp(
    factors: Sequence[float],
    *,
    held: bool,
    steps: int = 4,
    noise: float = 0.0,
    slow_forward: bool = True,
) -> Window:
    """Steps one after the other; rank r computes `factors[r]` times as long.

    In the backward only, unless `slow_forward`.
    """
    chance = np.random.default_rng(7)
    rows: list[Row] = []
    origins_s: list[float] = []
    began_s = 0.0
    for step in range(steps):
        of_rank = np.array(factors) * (1 + noise * chance.standard_normal(len(factors)))
        of_forward = of_rank if slow_forward else np.ones(of_rank.size)
        made, length_s = _step(of_rank.tolist(), of_forward.tolist(), held=held)
        rows += [row.on(step=step) for row in made]
        origins_s.append(began_s)
        began_s += length_s
    window = window_factory.window(rows, dp_size=len(factors))
    return dataclasses.replace(window, origin_ns=tuple(round(each * 1e9) for each in origins_s))


def _step(factors: list[float], of_forward: list[float], *, held: bool) -> tuple[list[Row], float]:
    part_s = BACKWARD_S / BUCKETS
    computed_s = [FORWARD_S * factor for factor in of_forward]
    end_s, rows = 0.0, []
    for _ in range(BUCKETS):
        computed_s = [
            since_s + part_s * factor for since_s, factor in zip(computed_s, factors, strict=True)
        ]
        start_s = [max(each, end_s) for each in computed_s]
        all_came_s = max(start_s)
        end_s = all_came_s + TRANSFER_S
        for dp_rank, each in enumerate(start_s):
            rows.append(Row("grads-reduce-scatter", each, end_s - each, dp_rank=dp_rank))
        if held:
            computed_s = [all_came_s] * len(factors)
    for dp_rank, factor in enumerate(of_forward):
        forward_s = FORWARD_S * factor
        rows += [
            Row("forward-compute", 0.0, forward_s, dp_rank=dp_rank),
            Row("backward-compute", forward_s, end_s - forward_s, dp_rank=dp_rank),
            # The stream waits for the last buckets before the backward ends: the client sees it.
            Row("wait", computed_s[dp_rank], end_s - computed_s[dp_rank], dp_rank=dp_rank),
            Row("optimizer", end_s, OPTIMIZER_S, dp_rank=dp_rank),
        ]
    return rows, end_s + OPTIMIZER_S


# Shares of the backward after which buckets of `queued_step` are reduced.
SHARES = (0.25, 0.5, 1.0)


def queued_step(passes_s: list[float], step: int = 0, reduce_s: float = 1.0) -> list[Row]:
    """A forward and a backward of each rank, both this long, and buckets reduced meanwhile.

    Every bucket begins on a rank when its share of the backward has run and the one before has
    ended, and ends on all ranks together; the optimizer follows.
    """
    rows, ended_s = list[Row](), 0.0
    for dp_rank, pass_s in enumerate(passes_s):
        computes = window_factory.in_row(("forward-compute", pass_s), ("backward-compute", pass_s))
        rows += [row.on(dp_rank=dp_rank) for row in computes]
    for share in SHARES:
        starts_s = [max(ended_s, (1 + share) * pass_s) for pass_s in passes_s]
        ended_s = max(starts_s) + reduce_s
        rows += [
            Row("grads-reduce-scatter", start_s, ended_s - start_s, dp_rank=dp_rank)
            for dp_rank, start_s in enumerate(starts_s)
        ]
    rows += [Row("optimizer", ended_s, 1.0, dp_rank=at) for at in range(len(passes_s))]
    return [row.on(step=step) for row in rows]
