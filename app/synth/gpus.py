"""What GPUs tell of themselves once a step: clock and temperature, of a healthy job."""

import numpy as np

from app.synth.drawn import Drawn
from app.synth.world import WHOLE_JOB

# Under load, on current accelerators.
_CLOCK_MHZ = 1_980
_TEMPERATURE_C = 62

# How differently GPUs are cooled, and how much one of them wavers from step to step.
_COOLED_C = 3.0
_WAVERS_C = 1.0
_WAVERS_MHZ = 8.0

# Beside the seed and the step, where a fault's number would stand.
_OF_GPUS = 2**31 + 3


def tell(drawn: Drawn, seed: int) -> None:
    """Fill `sm_clock_mhz` and `temperature_c` of every worker and step."""
    stages, _, dp_ranks = shape = drawn.is_silent.shape
    cooled = np.random.default_rng([seed, WHOLE_JOB, _OF_GPUS]).standard_normal((stages, dp_ranks))
    clock_mhz, temperature_c = np.empty(shape), np.empty(shape)
    for at, step in enumerate(drawn.steps.tolist()):
        wavers = np.random.default_rng([seed, step, _OF_GPUS]).standard_normal(
            (2, stages, dp_ranks)
        )
        clock_mhz[:, at] = _CLOCK_MHZ + _WAVERS_MHZ * wavers[0]
        temperature_c[:, at] = _TEMPERATURE_C + _COOLED_C * cooled + _WAVERS_C * wavers[1]
    drawn.sm_clock_mhz = np.rint(clock_mhz).astype(np.int64)
    drawn.temperature_c = np.rint(temperature_c).astype(np.int64)
