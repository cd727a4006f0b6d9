"""How much of many workers' time is left when all wait for the slowest of them?

    efficiency(N) = mean / E[largest of N]

of independent durations from one distribution: log-normal by its coefficient of variation, Pareto
by its shape. This is the law by which a synchronous job loses time without any fault.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest

# In standard deviations; beyond these lies less than 1e-30 of a normal distribution.
_MAX_DEVIATIONS = 12.0
_STEPS_PER_DEVIATION = 100


@dataclass(frozen=True, slots=True)
class Tail(ABC):
    """A distribution of durations with mean 1."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is called in a table."""

    @abstractmethod
    def expected_largest(self, num_workers: int) -> float:
        """Mean of the largest of so many, in mean durations."""

    def efficiency(self, num_workers: int) -> float:
        """Share of the workers' time that is not spent waiting for the slowest, 0..1."""
        if num_workers < 1:
            raise InvalidRequest(f"{num_workers} workers: give 1 or more")
        return 1.0 / self.expected_largest(num_workers)


@dataclass(frozen=True, slots=True)
class LogNormalTail(Tail):
    """Log-normal with this coefficient of variation."""

    cv: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.cv) and self.cv > 0):
            raise InvalidRequest(f"a coefficient of variation of {self.cv}: give one above 0")

    @property
    @override
    def label(self) -> str:
        return f"CV {self.cv:g}"

    @override
    def expected_largest(self, num_workers: int) -> float:
        """By the trapezoidal rule, which converges exponentially for so smooth a bell.

        E = integral of exp(s z - s^2 / 2) N phi(z) Phi(z)^(N - 1) dz,  s^2 = ln(1 + cv^2)
        """
        sigma = math.sqrt(math.log1p(self.cv**2))
        reach = _MAX_DEVIATIONS + sigma
        z = np.linspace(-reach, reach, math.ceil(2 * reach * _STEPS_PER_DEVIATION) + 1)
        # Phi(z) of the lower half; the upper half mirrors it, where 1 - Phi would round to 1.
        below = np.array([math.erfc(abs(each) / math.sqrt(2)) / 2 for each in z.tolist()])
        log_below = np.where(z < 0, np.log(below), np.log1p(-below))
        log_density = -(z**2) / 2 - math.log(2 * math.pi) / 2
        power = sigma * z - sigma**2 / 2 + log_density + (num_workers - 1) * log_below
        return float(num_workers * np.exp(power).sum() * (z[1] - z[0]))


@dataclass(frozen=True, slots=True)
class ParetoTail(Tail):
    """Pareto with this shape a: P(x > t) = (t0 / t)^a. The smaller, the heavier."""

    shape: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.shape) and self.shape > 1):
            raise InvalidRequest(
                f"a Pareto shape of {self.shape} has no mean: give a number above 1"
            )

    @property
    @override
    def label(self) -> str:
        return f"Pareto {self.shape:g}"

    @override
    def expected_largest(self, num_workers: int) -> float:
        """t0 Gamma(N + 1) Gamma(1 - 1/a) / Gamma(N + 1 - 1/a), where t0 = (a - 1) / a."""
        inverse = 1 / self.shape
        log_ratio = (
            math.lgamma(num_workers + 1)
            + math.lgamma(1 - inverse)
            - math.lgamma(num_workers + 1 - inverse)
        )
        return (1 - inverse) * math.exp(log_ratio)


WORKERS = (8, 32, 100, 256, 1_000, 4_096, 10_000, 32_768, 100_000)

# From what healthy workers show (0.015 to 0.03) to shared machines.
TAILS: tuple[Tail, ...] = (
    *(LogNormalTail(cv) for cv in (0.015, 0.03, 0.05, 0.1, 0.2, 0.5)),
    *(ParetoTail(shape) for shape in (10.0, 5.0, 3.0, 2.0, 1.5)),
)
