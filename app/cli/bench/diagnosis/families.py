"""Shapes, schedules, noises and costs: some to tune on, others held out for reports."""

from dataclasses import dataclass

from app.cli.bench.diagnosis.gamma import Gamma
from app.synth.noise import HeavyTailed, LogNormal, Noise, Pareto

Between = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a job, and its schedule."""

    dp: int
    pp: int
    microbatches: int
    schedule: str = "1f1b"
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class Family:
    """What jobs are drawn from: choices, and (low, high) for numbers.

    `spread` is the coefficient of variation of computations; `backward` how many times longer a
    backward takes than a forward; `transfer` the time of sending a micro-batch, and `collective`
    that of gathering parameters, in forwards of a stage; `uneven` how far a healthy stage's work
    is from the mean of stages.
    """

    name: str
    shapes: tuple[Shape, ...]
    noises: tuple[Noise, ...]
    spread: Between
    transfer_spread: Between
    forward_s: Between
    backward: Between
    transfer: Between
    collective: Between
    uneven: float


TUNE = Family(
    "tune",
    shapes=(
        Shape(4, 4, 8),
        Shape(8, 2, 8),
        Shape(2, 4, 8),
        Shape(8, 4, 8),
        Shape(8, 1, 8),
        Shape(1, 4, 12),
        Shape(4, 4, 8, "gpipe"),
        Shape(4, 4, 8, "interleaved", 2),
        Shape(4, 2, 6, "zero-bubble"),
    ),
    noises=(LogNormal(), LogNormal(), HeavyTailed()),
    spread=(0.01, 0.05),
    transfer_spread=(0.03, 0.10),
    forward_s=(0.015, 0.04),
    backward=(1.9, 2.1),
    transfer=(0.005, 0.03),
    collective=(0.1, 0.3),
    uneven=0.0,
)

HELD_OUT = Family(
    "held-out",
    shapes=(
        Shape(6, 3, 9),
        Shape(3, 8, 16),
        Shape(12, 2, 5),
        Shape(16, 1, 4),
        Shape(5, 5, 10, "gpipe"),
        Shape(6, 2, 8, "interleaved", 3),
        Shape(3, 4, 12, "zero-bubble"),
        Shape(1, 6, 12),
    ),
    noises=(Pareto(), Gamma(), Pareto()),
    spread=(0.01, 0.05),
    transfer_spread=(0.02, 0.15),
    forward_s=(0.05, 0.12),
    backward=(1.5, 2.8),
    transfer=(0.03, 0.08),
    collective=(0.3, 0.8),
    uneven=0.015,
)

FAMILIES = {family.name: family for family in (TUNE, HELD_OUT)}
