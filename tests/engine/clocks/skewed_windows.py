"""Windows of workers whose clocks are apart and whose hosts and absolute times are unknown."""

import numpy as np

from app.trace.window import Window
from tests import window_factory


def skewed(window: Window, skew_s: float, *, drift_ppm: float = 0.0, seed: int = 1) -> Window:
    """Each worker's clock ahead by up to so much; steps count from their first start."""
    chance, sizes = np.random.default_rng(seed), window.job.parallelism
    shape = (sizes.dp_size, sizes.pp_size)
    ahead_s = chance.uniform(-skew_s, skew_s, shape)
    drift = chance.uniform(-drift_ppm, drift_ppm, shape) * 1e-6
    trace = window.trace
    worker = (trace.dp_rank, trace.stage)
    position = np.searchsorted(window.steps, trace.step)
    start_s = trace.start_s + ahead_s[worker] + drift[worker] * position
    first_s = np.full(len(window.steps), np.inf)
    np.minimum.at(first_s, position, start_s)
    return window_factory.with_columns(window, start_s=start_s - first_s[position])
