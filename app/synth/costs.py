"""How long does each operation of a made job take, before anybody waits for anybody?"""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from app.errors import InvalidRequest
from app.synth.faults import Fault
from app.trace.job import Parallelism
from app.trace.ops import Direction
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class Costs:
    """Mean seconds of every operation, and how far single ones stray from it.

    `noise` and `transfer_noise` are coefficients of variation of log-normal factors; healthy
    production workers have 0.015 to 0.03. `stage_factors` scales the computations of each stage.
    """

    forward_s: float = 0.02
    backward_s: float = 0.04
    optimizer_s: float = 2e-3
    gc_s: float = 2e-5
    stage_transfer_s: float = 2e-4
    params_all_gather_s: float = 3e-3
    grads_reduce_scatter_s: float = 4e-3
    layernorm_all_reduce_s: float = 2e-4
    embedding_all_reduce_s: float = 8e-4
    clip_s: float = 4e-4
    launch_delay_s: float = 2e-5
    noise: float = 0.015
    transfer_noise: float = 0.05
    stage_factors: tuple[float, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name != "stage_factors"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InvalidRequest(f"{name} is {value}: give a number, 0 or more")
        if any(not (np.isfinite(factor) and factor > 0) for factor in self.stage_factors):
            raise InvalidRequest("stage_factors: every factor is a number above 0")

    @classmethod
    def of_compute_only(cls, forward_s: float, backward_s: float) -> "Costs":
        """Nothing but forward and backward takes time, and never more or less than this."""
        return cls(
            forward_s=forward_s,
            backward_s=backward_s,
            optimizer_s=0.0,
            gc_s=0.0,
            stage_transfer_s=0.0,
            params_all_gather_s=0.0,
            grads_reduce_scatter_s=0.0,
            layernorm_all_reduce_s=0.0,
            embedding_all_reduce_s=0.0,
            clip_s=0.0,
            launch_delay_s=0.0,
            noise=0.0,
            transfer_noise=0.0,
        )

    def with_noise(self, noise: float) -> "Costs":
        """The same means, with another spread of the computations."""
        return replace(self, noise=noise)

    def computation_s(
        self, direction: Direction, parallelism: Parallelism, faults: tuple[Fault, ...]
    ) -> Floats:
        """Mean seconds of one micro-batch in one direction on each worker, [stages, dp ranks]."""
        base_s = self.forward_s if direction is Direction.FORWARD else self.backward_s
        mean_s = np.full((parallelism.pp_size, parallelism.dp_size), base_s)
        if self.stage_factors:
            if len(self.stage_factors) != parallelism.pp_size:
                raise InvalidRequest(
                    f"{len(self.stage_factors)} stage factors for {parallelism.pp_size} stages: "
                    "give one for each stage"
                )
            mean_s *= np.asarray(self.stage_factors)[:, None]
        for fault in faults:
            mean_s *= fault.factor(direction, parallelism)
        return mean_s


def noisy(
    mean_s: Floats | float, noise: float, shape: tuple[int, ...], rng: np.random.Generator
) -> Floats:
    """Durations of `shape` around the mean, with `noise` as their coefficient of variation."""
    # The second term keeps the mean of the log-normal factor at 1.
    spread = np.sqrt(np.log1p(noise**2))
    factor = np.exp(spread * rng.standard_normal(shape) - spread**2 / 2)
    return np.asarray(mean_s * factor, dtype=np.float64)
