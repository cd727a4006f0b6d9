"""Data-parallel jobs whose ranks are late to the reduction for reasons that are known.

A step of one rank: data wait, then for each of four micro-batches a forward of 20 ms and a backward
of 40 ms, a reduction that all leave together 4 ms after the last has come, an optimizer of 2 ms.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from app.trace.window import Window
from tests import window_factory
from tests.window_factory import Row

FORWARD_S, BACKWARD_S, TRANSFER_S, OPTIMIZER_S = 0.020, 0.040, 0.004, 0.002
MICROBATCHES = 4
HEALTHY_S = MICROBATCHES * (FORWARD_S + BACKWARD_S) + TRANSFER_S + OPTIMIZER_S


@dataclass(frozen=True)
class LateJob:
    """Seconds a step of each rank named, spread evenly over where they occur.

    `host_s` before its computations, `gc_s` in a gap before its computations and `gc_inside_s`
    inside the forwards, both with `gc-pause` annotations, `data_s` before the first forward with a
    `data-wait`. `factor` scales its computations, `forward_factor` its forwards alone. All this in
    the steps `when`, of all ranks named.
    """

    host_s: Mapping[int, float] = field(default_factory=dict)
    gc_s: Mapping[int, float] = field(default_factory=dict)
    gc_inside_s: Mapping[int, float] = field(default_factory=dict)
    data_s: Mapping[int, float] = field(default_factory=dict)
    factor: Mapping[int, float] = field(default_factory=dict)
    forward_factor: Mapping[int, float] = field(default_factory=dict)
    when: tuple[int, ...] | None = None
    dp_size: int = 8
    num_steps: int = 8
    noise: float = 0.01
    seed: int = 1

    def window(self) -> Window:
        chance = np.random.default_rng(self.seed)
        rows: list[Row] = []
        origins_s: list[float] = []
        began_s = 0.0
        for step in range(self.num_steps):
            made, length_s = self._step(step, chance)
            rows += made
            origins_s.append(began_s)
            began_s += length_s
        window = window_factory.window(rows, dp_size=self.dp_size)
        hosts = {(dp_rank, 0): f"host-{dp_rank}" for dp_rank in range(self.dp_size)}
        origin_ns = tuple(round(each * 1e9) for each in origins_s)
        return dataclasses.replace(window, origin_ns=origin_ns, hosts=hosts)

    def _step(self, step: int, chance: np.random.Generator) -> tuple[list[Row], float]:
        rows: list[Row] = []
        came_s = []
        for dp_rank in range(self.dp_size):
            made, end_s = self._computed(dp_rank, step, chance)
            rows += [row.on(dp_rank=dp_rank, step=step) for row in made]
            came_s.append(end_s)
        left_s = max(came_s) + TRANSFER_S
        for dp_rank, each in enumerate(came_s):
            reduced = Row("grads-reduce-scatter", each, left_s - each)
            done = Row("optimizer", left_s, OPTIMIZER_S)
            rows += [row.on(dp_rank=dp_rank, step=step) for row in (reduced, done)]
        return rows, left_s + OPTIMIZER_S

    def _computed(
        self, dp_rank: int, step: int, chance: np.random.Generator
    ) -> tuple[list[Row], float]:
        struck = self.when is None or step in self.when

        def of(amounts: Mapping[int, float], default: float = 0.0) -> float:
            return amounts.get(dp_rank, default) if struck else default

        rows: list[Row] = []
        now_s = of(self.data_s)
        if now_s:
            rows.append(Row("data-wait", 0.0, now_s))
        for microbatch in range(MICROBATCHES):
            for name, usual_s in (("forward", FORWARD_S), ("backward", BACKWARD_S)):
                now_s += of(self.host_s) / (2 * MICROBATCHES)
                if pause_s := of(self.gc_s) / (2 * MICROBATCHES):
                    rows.append(Row("gc-pause", now_s, pause_s))
                    now_s += pause_s
                took_s = usual_s * of(self.factor, 1.0)
                took_s *= of(self.forward_factor, 1.0) if name == "forward" else 1.0
                took_s *= 1 + self.noise * float(chance.standard_normal())
                if name == "forward" and (pause_s := of(self.gc_inside_s) / MICROBATCHES):
                    rows.append(Row("gc-pause", now_s + took_s / 2, pause_s))
                    took_s += pause_s
                rows.append(Row(f"{name}-compute", now_s, took_s, mb_id=microbatch))
                now_s += took_s
        return rows, now_s


# How long before they begin on the GPU computations are launched, by hosts that are ahead of it and
# by such as are busy until then.
AHEAD_US, BEHIND_US = 200_000, 10


def with_launches(window: Window, *, late: tuple[int, ...] = ()) -> Window:
    """The window with launch lags; hosts of `late` ranks launch when the GPU is idle."""
    lag_us = np.where(np.isin(window.trace.dp_rank, late), BEHIND_US, AHEAD_US)
    return window_factory.with_columns(window, launch_lag_us=lag_us)
