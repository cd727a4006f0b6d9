"""Seconds of made steps as nanoseconds on a clock."""

import numpy as np

from app.trace.window import Floats, Ints

NS_PER_S = 1_000_000_000
BEGAN_NS = 1_790_000_000 * NS_PER_S  # an epoch time such as clocks show


def times_ns(start_s: Floats, duration_s: Floats, began_s: Floats) -> tuple[Ints, Ints]:
    """Since the job began, by the true clock; ends are rounded as starts are."""
    began_ns = np.rint(began_s * NS_PER_S).astype(np.int64)[:, None, None]
    start_ns = np.rint(start_s * NS_PER_S).astype(np.int64)
    end_ns = np.rint((start_s + duration_s) * NS_PER_S).astype(np.int64)
    return (start_ns + began_ns).ravel(), (end_ns - start_ns).ravel()
