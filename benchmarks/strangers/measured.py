"""Noise of the published traces, as `benchmarks strangers --measure-noise` measures it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoiseTable:
    """Random variation of operations around their worker's own median.

    `..._cv` are coefficients of variation: of single computations, of the optimizer, of a host in a
    step (shared by its workers), of p2p transfers, of collectives. `tail_share` of communications
    are longer by a Pareto factor of index `tail_index`. `spread` is the distance between the
    fastest and the slowest worker of a stage.
    """

    compute_cv: float
    optimizer_cv: float
    host_cv: float
    transfer_cv: float
    collective_cv: float
    tail_share: float
    tail_index: float
    spread: float


MEASURED = NoiseTable(0.012, 0.01, 0.003, 0.05, 0.05, 0.002, 1.8, 0.01)
