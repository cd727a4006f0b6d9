"""Mean duration of each operation of a simulated job, without waiting."""

from dataclasses import dataclass, field, fields

import numpy as np

from app.errors import InvalidRequest
from app.synth.noise import LogNormal, Noise
from app.trace.job import Parallelism
from app.trace.ops import Direction
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class OperationCosts:
    """Mean seconds of every operation, and their variation.

    `forward_s` and `backward_s` are of one micro-batch on one stage, its chunks together, both
    halves of a split backward too; `weight_share` is the second half's. `noise` and
    `transfer_noise` are coefficients of variation of factors of kind `tail`; healthy production
    workers have 0.015 to 0.03. `stage_factors` scales the computations of each stage,
    `chunk_factors` those of each chunk of the whole model, in its order.
    `sizes` are the bytes that operations of a type move, as far as known.
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
    stage_factors: tuple[float, ...] = ()
    chunk_factors: tuple[float, ...] = ()
    weight_share: float = 0.5
    tail: Noise = field(default_factory=LogNormal)
    sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.type is float):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InvalidRequest(f"{name} is {value}: give a number, 0 or more")
        if self.weight_share > 1:
            raise InvalidRequest(f"weight_share is {self.weight_share}: a share is at most 1")
        for name in ("stage_factors", "chunk_factors"):
            if any(not (np.isfinite(factor) and factor > 0) for factor in getattr(self, name)):
                raise InvalidRequest(f"{name}: every factor is a number above 0")

    @property
    def once_s(self) -> dict[str, float]:
        """Mean seconds of operations that occur once per step or chunk, by type."""
        return {
            "params-all-gather": self.params_all_gather_s,
            "gc": self.gc_s,
            "layernorm-grads-all-reduce": self.layernorm_all_reduce_s,
            "embedding-grads-all-reduce": self.embedding_all_reduce_s,
            "grads-reduce-scatter": self.grads_reduce_scatter_s,
            "optimizer-clip-main-grad": self.clip_s,
            "optimizer": self.optimizer_s,
        }

    def computation_s(self, direction: Direction, parallelism: Parallelism) -> Floats:
        """Mean seconds of one micro-batch in one direction, [stages, chunks]."""
        base_s = self.forward_s if direction is Direction.FORWARD else self.backward_s
        num_chunks = parallelism.vpp_size
        mean_s = np.full((parallelism.pp_size, num_chunks), base_s / num_chunks)
        if self.stage_factors:
            self._refuse_other_count("stage_factors", parallelism.pp_size)
            mean_s *= np.asarray(self.stage_factors)[:, None]
        if self.chunk_factors:
            self._refuse_other_count("chunk_factors", mean_s.size)
            mean_s *= np.reshape(self.chunk_factors, (num_chunks, parallelism.pp_size)).T
        return mean_s

    def _refuse_other_count(self, name: str, count: int) -> None:
        """Check that there is one factor for each stage or chunk."""
        if len(getattr(self, name)) != count:
            what, given = name.removesuffix("_factors"), len(getattr(self, name))
            raise InvalidRequest(f"{given} {what} factors for {count} {what}s: give one for each")
