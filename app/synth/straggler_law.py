"""The share of time that a synchronous job without any fault uses, by its number of workers N.

    efficiency(N) = mean / E[largest of N]

All workers wait for the slowest one. Their durations are independent and have one distribution:
log-normal with a coefficient of variation, or Pareto with a shape.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest

# Bounds of the integral in standard deviations: less than 1e-30 of the distribution is beyond them.
_MAX_DEVIATIONS = 12.0
_STEPS_PER_DEVIATION = 100


@dataclass(frozen=True, slots=True)
class Tail(ABC):
    """A distribution of durations with mean 1."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in a table."""

    @abstractmethod
    def expected_largest(self, num_workers: int) -> float:
        """Mean of the largest of `num_workers` durations, in units of the mean duration."""

    def efficiency(self, num_workers: int) -> float:
        """Share of the workers' time that is not spent waiting for the slowest, 0..1."""
        if num_workers < 1:
            raise InvalidRequest(f"{num_workers} workers: give 1 or more")
        return 1.0 / self.expected_largest(num_workers)


@dataclass(frozen=True, slots=True)
class LogNormalTail(Tail):
    """A log-normal distribution with coefficient of variation `cv`."""

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
        """The integral by the trapezoidal rule, which converges exponentially for a smooth bell.

        E = integral of exp(s z - s^2 / 2) N phi(z) Phi(z)^(N - 1) dz,  s^2 = ln(1 + cv^2)
        """
        sigma = math.sqrt(math.log1p(self.cv**2))
        reach = _MAX_DEVIATIONS + sigma
        z = np.linspace(-reach, reach, math.ceil(2 * reach * _STEPS_PER_DEVIATION) + 1)
        # Phi(-|z|), since Phi(z) would be rounded to 1 in the upper half.
        below = np.array([math.erfc(abs(value) / math.sqrt(2)) / 2 for value in z.tolist()])
        log_below = np.where(z < 0, np.log(below), np.log1p(-below))
        log_density = -(z**2) / 2 - math.log(2 * math.pi) / 2
        power = sigma * z - sigma**2 / 2 + log_density + (num_workers - 1) * log_below
        return float(num_workers * np.exp(power).sum() * (z[1] - z[0]))


@dataclass(frozen=True, slots=True)
class ParetoTail(Tail):
    """A Pareto distribution of shape a: P(x > t) = (t0 / t)^a; a small shape is a heavy tail."""

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
        log_ratio = math.lgamma(num_workers + 1) + math.lgamma(1 - inverse)
        log_ratio -= math.lgamma(num_workers + 1 - inverse)
        return (1 - inverse) * math.exp(log_ratio)


WORKERS = (8, 32, 100, 256, 1_000, 4_096, 10_000, 32_768, 100_000)

# From the variation of healthy workers (0.015 to 0.03) to that of shared machines.
TAILS: tuple[Tail, ...] = (
    *(LogNormalTail(cv) for cv in (0.015, 0.03, 0.05, 0.1, 0.2, 0.5)),
    *(ParetoTail(shape) for shape in (10.0, 5.0, 3.0, 2.0, 1.5)),
)
