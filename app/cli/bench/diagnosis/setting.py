"""The job that a fault is drawn for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.synth.costs import Costs
from app.synth.world import Worker, World


@dataclass(frozen=True, slots=True)
class Setting:
    """A job of which `steps` are recorded; `step_s` is its usual step time.

    `most_lost` is the largest share of the time that a fault of seconds is meant to cost.
    """

    world: World
    costs: Costs
    step_s: float
    steps: Sequence[int]
    sends_annotations: bool
    sends_lengths: bool
    most_lost: float
    rng: np.random.Generator

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.world.parallelism.dp_size

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.world.parallelism.pp_size

    def between(self, low: float, high: float) -> float:
        """Any number between, each magnitude as likely."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def lost_s(self) -> float:
        """Seconds a step that a fault is meant to cost: from 6 % of the time on."""
        share = self.between(0.06, self.most_lost)
        return self.step_s * share / (1 - share)

    def worker(self) -> Worker:
        """Any dp rank and stage."""
        return int(self.rng.integers(self.dp)), int(self.rng.integers(self.pp))

    def host(self) -> str:
        """Any host."""
        return str(self.rng.choice(self.world.host_names))

    def few_workers(self) -> tuple[Worker, ...]:
        """One to three workers, at most a quarter of them all."""
        num_workers = self.dp * self.pp
        count = min(1 + int(self.rng.integers(3)), max(1, num_workers // 4))
        chosen = self.rng.choice(num_workers, count, replace=False)
        return tuple(sorted(divmod(int(each), self.pp) for each in chosen))
