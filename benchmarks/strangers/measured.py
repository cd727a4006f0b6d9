"""Noise of the published traces, as `benchmarks strangers --measure-noise` measures it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """Variation of single operations of some types.

    `cv` is the coefficient of variation; `tail_share` of the operations are longer than 5 of it,
    by a Pareto factor of index `tail_index`.
    """

    cv: float
    tail_share: float
    tail_index: float


@dataclass(frozen=True, slots=True)
class NoiseTable:
    """Random variation of operations around their worker's own median.

    `step_cv`, `host_cv` and `worker_cv` are coefficients of variation of a step's computations that
    all workers, those of a host, and single workers have. `spread` is the distance between the
    fastest and the slowest replica of a stage, as a share.
    """

    forward: Measure
    backward: Measure
    optimizer: Measure
    transfer: Measure
    collective: Measure
    small: Measure
    step_cv: float
    host_cv: float
    worker_cv: float
    spread: float


# Mean of the published production traces AR (64 GPUs, 44 steps) and ST (8 GPUs, 32 steps).
MEASURED = NoiseTable(
    forward=Measure(cv=0.0137, tail_share=0.0011, tail_index=26.73),
    backward=Measure(cv=0.0173, tail_share=0.0, tail_index=10.0),
    optimizer=Measure(cv=0.0034, tail_share=0.0984, tail_index=168.02),
    transfer=Measure(cv=0.0244, tail_share=0.0199, tail_index=7.45),
    collective=Measure(cv=0.0062, tail_share=0.0391, tail_index=33.02),
    small=Measure(cv=0.0287, tail_share=0.159, tail_index=1.28),
    step_cv=0.0145,
    host_cv=0.0,
    worker_cv=0.0052,
    spread=0.0057,
)
