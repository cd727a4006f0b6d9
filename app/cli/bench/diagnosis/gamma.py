"""A noise that no detector was tuned on."""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from app.synth.noise import Noise
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class Gamma(Noise):
    """Sums of many short waits: skewed to the right, with a light tail."""

    name = "gamma"

    @override
    def _uncapped(self, spread: float, size: int, rng: np.random.Generator) -> Floats:
        return np.asarray(rng.gamma(spread**-2, spread**2, size))

    @override
    def _median(self, spread: float) -> float:
        # Banneheka and Ekanayake, 2009: within 1e-3 for shapes above 1.
        shape = spread**-2
        return (3 * shape - 0.8) / (3 * shape + 0.2)
