"""The variation within a healthy job: special steps, and the clocks and temperatures of GPUs.

First, evaluation and checkpoint steps take longer on every worker. `sampled_steps` are the steps
that are recorded if only some are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.synth.cluster import WHOLE_JOB
from app.synth.drawing import DrawnSteps
from app.synth.noise import check_amounts
from app.trace.window import Floats, Ints

# In place of a fault's number beside the seed and the step.
_ODD_STEPS_SEED = 2**31 + 2

# Range of the relative differences between the workers' delays.
_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class SpecialSteps:
    """First, evaluation and checkpoint steps.

    The first `num_first` steps from `first_step` on compute `first_factor` times as long (kernels
    are compiled, memory is allocated). Every `evaluate_every` steps, all workers pause for
    `evaluation_s` before they compute; every `checkpoint_every` steps, the optimizer takes
    `checkpoint_s` longer. 0 is never.
    """

    first_step: int = 0
    num_first: int = 0
    first_factor: float = 3.0
    evaluate_every: int = 0
    evaluation_s: float = 2.0
    checkpoint_every: int = 0
    checkpoint_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("num_first", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}: give 0 or more")
        names = "first_factor", "evaluation_s", "checkpoint_s"
        check_amounts(**{name: getattr(self, name) for name in names})

    def change(self, drawn: DrawnSteps, seed: int) -> None:
        """Lengthen first, evaluation and checkpoint steps."""
        steps = drawn.steps
        warms_up = (steps >= self.first_step) & (steps < self.first_step + self.num_first)
        factor = np.where(warms_up, self.first_factor, 1.0)[:, None]
        drawn.forward_s *= factor
        drawn.backward_s *= factor
        evaluates = _every(steps, self.evaluate_every)
        saves = _every(steps, self.checkpoint_every)
        for at in np.flatnonzero(evaluates | saves).tolist():
            rng = np.random.default_rng([seed, int(steps[at]), _ODD_STEPS_SEED])
            factor_of = 1 + _SPREAD * rng.random((2, *drawn.is_silent.shape[::2]))
            if evaluates[at]:
                _delay_all(drawn, at, self.evaluation_s * factor_of[0])
            if saves[at]:
                drawn.once_s["optimizer"][:, 0, at] += self.checkpoint_s * factor_of[1]


def sampled_steps(num_steps: int, *, recorded: int = 40, every: int = 400) -> list[int]:
    """The first `num_steps` recorded steps, if the first `recorded` of `every` steps are.

    Raises:
        InvalidRequest: `recorded` is 0 or larger than `every`.
    """
    if not 1 <= recorded <= every:
        raise InvalidRequest(f"{recorded} of every {every} steps: give 1 to {every}")
    return [every * (k // recorded) + k % recorded for k in range(num_steps)]


def _delay_all(drawn: DrawnSteps, at: int, pause_s: Floats) -> None:
    """Delay [stages, dp ranks] the first forward computations and the receives before them."""
    drawn.forward_delay_s[0, 0, 0, at] += pause_s[0]
    if "forward-recv" in drawn.p2p_delay_s:
        drawn.p2p_delay_s["forward-recv"][1:, 0, 0, at] += pause_s[1:]


def _every(steps: Ints, period: int) -> NDArray[np.bool_]:
    """[steps], whether the step is a multiple of the period, without step 0."""
    if not period:
        return np.zeros(steps.size, np.bool_)
    return np.asarray((steps > 0) & (steps % period == 0))


# Usual values of current accelerators under load.
_CLOCK_MHZ = 1_980
_TEMPERATURE_C = 62

# Standard deviations: between GPUs, by their cooling, and of one GPU between steps.
_COOLING_SPREAD_C = 3.0
_STEP_SPREAD_C = 1.0
_STEP_SPREAD_MHZ = 8.0

# In place of a fault's number beside the seed and the step.
_GPU_SEED = 2**31 + 3


def add_gpu_readings(drawn: DrawnSteps, seed: int) -> None:
    """Fill `sm_clock_mhz` and `temperature_c` of every worker and step."""
    stages, _, dp_ranks = shape = drawn.is_silent.shape
    rng = np.random.default_rng([seed, WHOLE_JOB, _GPU_SEED])
    usual_c = _TEMPERATURE_C + _COOLING_SPREAD_C * rng.standard_normal((stages, dp_ranks))
    clock_mhz, temperature_c = np.empty(shape), np.empty(shape)
    for at, step in enumerate(drawn.steps.tolist()):
        rng = np.random.default_rng([seed, step, _GPU_SEED])
        in_step = rng.standard_normal((2, stages, dp_ranks))
        clock_mhz[:, at] = _CLOCK_MHZ + _STEP_SPREAD_MHZ * in_step[0]
        temperature_c[:, at] = usual_c + _STEP_SPREAD_C * in_step[1]
    drawn.sm_clock_mhz = np.rint(clock_mhz).astype(np.int64)
    drawn.temperature_c = np.rint(temperature_c).astype(np.int64)
