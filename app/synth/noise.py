"""The random variation of single durations around their mean."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from app.errors import InvalidRequest
from app.trace.window import Floats


def check_amounts(**values: float) -> None:
    """Raise `InvalidRequest` for a value that is no finite number of 0 or more."""
    for name, value in values.items():
        if not (np.isfinite(value) and value >= 0):
            raise InvalidRequest(f"{name} is {value}: give a number, 0 or more")


# In medians; an operation that takes longer would be a straggler rather than noise.
DEFAULT_CAP = 3.0


@dataclass(frozen=True, slots=True)
class Noise(ABC):
    """A distribution of factors; `cap` is the largest factor in medians, None for no limit."""

    name: ClassVar[str]
    cap: float | None = DEFAULT_CAP

    def factors(self, spread: float, size: int, rng: np.random.Generator) -> Floats:
        """[size], with mean 1 and coefficient of variation `spread` before the cap."""
        if spread == 0.0:
            return np.ones(size)
        factors = self._uncapped(spread, size, rng)
        if self.cap is not None:
            np.minimum(factors, self.cap * self._median(spread), out=factors)
        return factors

    @abstractmethod
    def _uncapped(self, spread: float, size: int, rng: np.random.Generator) -> Floats:
        """[size], with mean 1 and coefficient of variation `spread`."""

    @abstractmethod
    def _median(self, spread: float) -> float:
        """The median factor."""


@dataclass(frozen=True, slots=True)
class LogNormal(Noise):
    """The distribution of healthy workers: nearly symmetric for a small spread."""

    name = "log-normal"

    @override
    def _uncapped(self, spread: float, size: int, rng: np.random.Generator) -> Floats:
        sigma = np.sqrt(np.log1p(spread**2))
        factors: Floats = rng.standard_normal(size)
        factors *= sigma
        factors -= sigma**2 / 2  # so that the mean is 1
        return np.exp(factors, out=factors)

    @override
    def _median(self, spread: float) -> float:
        return float(1 / np.sqrt(1 + spread**2))


@dataclass(frozen=True, slots=True)
class Pareto(Noise):
    """A heavy tail: never much below the median, sometimes far above it.

    P(x > t) = (t0 / t)^a for t >= t0, mean t0 a / (a - 1), variation 1 / sqrt(a (a - 2)).
    """

    name = "pareto"

    @override
    def _uncapped(self, spread: float, size: int, rng: np.random.Generator) -> Floats:
        alpha = self.alpha(spread)
        # 1 - u, since u may be 0.
        return np.asarray((1 - rng.random(size)) ** (-1 / alpha) * (alpha - 1) / alpha)

    @override
    def _median(self, spread: float) -> float:
        alpha = self.alpha(spread)
        return float(2 ** (1 / alpha) * (alpha - 1) / alpha)

    @staticmethod
    def alpha(spread: float) -> float:
        """The exponent a of the tail; above 2, since the variance is finite."""
        return float(1 + np.sqrt(1 + spread**-2))


@dataclass(frozen=True, slots=True)
class HeavyTailed(Noise):
    """Log-normal factors, a share of them multiplied by a Pareto factor of exponent `alpha`.

    The mean is 1; `spread` is that of the log-normal factors.
    """

    name = "heavy-tailed"
    share: float = 0.005
    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.alpha > 1):
            raise InvalidRequest("a heavy tail has a share of 0 to 1 and an exponent above 1")

    @override
    def _uncapped(self, spread: float, size: int, rng: np.random.Generator) -> Floats:
        factors = LogNormal(cap=None).factors(spread, size, rng)
        rare = np.flatnonzero(rng.random(size) < self.share)
        factors[rare] *= (1 - rng.random(rare.size)) ** (-1 / self.alpha)
        factors /= self._mean()
        return factors

    @override
    def _median(self, spread: float) -> float:
        return LogNormal(cap=None)._median(spread) / self._mean()

    def _mean(self) -> float:
        """The mean factor before normalisation, because of the tail."""
        return 1 + self.share / (self.alpha - 1)


NOISES: dict[str, type[Noise]] = {kind.name: kind for kind in (LogNormal, Pareto, HeavyTailed)}
