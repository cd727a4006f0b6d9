"""What varies in a healthy job: special steps, and the clocks and temperatures of GPUs.

First, evaluation and checkpoint steps take longer on every worker. Also says which steps are
recorded where only some are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.synth.cluster import WHOLE_JOB
from app.synth.drawing import DrawnSteps
from app.synth.noise import check_amounts
from app.trace.window import Floats, Ints

# Beside the seed and the step, where a fault's number would stand.
_ODD_STEPS_SEED = 2**31 + 2

# How differently workers are held up.
_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class SpecialSteps:
    """First, evaluation and checkpoint steps.

    The first `num_first` steps from `first_step` on compute `first_factor` times as long (kernels
    are compiled, memory is found). In each `evaluate_every`-th step, every worker pauses
    for `evaluation_s` before it computes; in each `checkpoint_every`-th step its optimizer takes
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
            held_up = 1 + _SPREAD * rng.random((2, *drawn.is_silent.shape[::2]))
            if evaluates[at]:
                _delay_all(drawn, at, self.evaluation_s * held_up[0])
            if saves[at]:
                drawn.once_s["optimizer"][:, 0, at] += self.checkpoint_s * held_up[1]


def sampled_steps(num_steps: int, *, recorded: int = 40, every: int = 400) -> list[int]:
    """The first `num_steps` steps to be recorded, if so many of every so many are.

    Raises:
        InvalidRequest: none would be, or more than there are.
    """
    if not 1 <= recorded <= every:
        raise InvalidRequest(f"{recorded} of every {every} steps: give 1 to {every}")
    return [every * (k // recorded) + k % recorded for k in range(num_steps)]


def _delay_all(drawn: DrawnSteps, at: int, pause_s: Floats) -> None:
    """Hold everybody up, [stages, dp ranks], before the first forward or what it needs is asked."""
    drawn.forward_delay_s[0, 0, 0, at] += pause_s[0]
    if "forward-recv" in drawn.p2p_delay_s:
        drawn.p2p_delay_s["forward-recv"][1:, 0, 0, at] += pause_s[1:]


def _every(steps: Ints, period: int) -> NDArray[np.bool_]:
    """Every so many steps, but not at the very beginning."""
    if not period:
        return np.zeros(steps.size, np.bool_)
    return np.asarray((steps > 0) & (steps % period == 0))


# Under load, on current accelerators.
_CLOCK_MHZ = 1_980
_TEMPERATURE_C = 62

# How differently GPUs are cooled, and how much one of them wavers from step to step.
_COOLING_SPREAD_C = 3.0
_STEP_SPREAD_C = 1.0
_STEP_SPREAD_MHZ = 8.0

# Beside the seed and the step, where a fault's number would stand.
_GPU_SEED = 2**31 + 3


def add_gpu_readings(drawn: DrawnSteps, seed: int) -> None:
    """Fill `sm_clock_mhz` and `temperature_c` of every worker and step."""
    stages, _, dp_ranks = shape = drawn.is_silent.shape
    cooled = np.random.default_rng([seed, WHOLE_JOB, _GPU_SEED]).standard_normal((stages, dp_ranks))
    clock_mhz, temperature_c = np.empty(shape), np.empty(shape)
    for at, step in enumerate(drawn.steps.tolist()):
        wavers = np.random.default_rng([seed, step, _GPU_SEED]).standard_normal(
            (2, stages, dp_ranks)
        )
        clock_mhz[:, at] = _CLOCK_MHZ + _STEP_SPREAD_MHZ * wavers[0]
        temperature_c[:, at] = (
            _TEMPERATURE_C + _COOLING_SPREAD_C * cooled + _STEP_SPREAD_C * wavers[1]
        )
    drawn.sm_clock_mhz = np.rint(clock_mhz).astype(np.int64)
    drawn.temperature_c = np.rint(temperature_c).astype(np.int64)
