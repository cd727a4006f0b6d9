"""Clocks as lines: how far each is ahead, and how much faster it runs."""

from dataclasses import dataclass

import numpy as np

from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Lines:
    """Each clock as a line: a time by it less `offset_ns` less `rest_ns` is the reference's.

    rest = bias + slope * (t - middle) / half, where t is the time less its `offset_ns`, and
    counts from the nanosecond `origin`. Shapes: [hosts], `coefficients` [hosts, 2] (bias, slope).
    `drift_error` is about how far a drift may be off by chance, `spread_ns` how far ends are from
    each other.
    """

    offset_ns: Ints
    origin_ns: int
    middle_ns: float
    half_ns: float
    coefficients: Floats
    drift_error: Floats
    spread_ns: float

    @property
    def drift(self) -> Floats:
        """[hosts], how much faster each clock runs than the reference's, as a plain number."""
        return np.asarray(self.coefficients[:, 1] / self.half_ns)
