"""Steps that are longer on every worker though nothing is wrong, and steps that nobody records."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.synth.drawn import Drawn
from app.trace.window import Floats, Ints

# Beside the seed and the step, where a fault's number would stand.
_OF_ODD_STEPS = 2**31 + 2

# How differently workers are held up.
_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class OddSteps:
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
        for name in ("first_factor", "evaluation_s", "checkpoint_s"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InvalidRequest(f"{name} is {getattr(self, name)}: give a number, 0 or more")

    def is_first(self, steps: Ints) -> NDArray[np.bool_]:
        """[steps], whether the job only warms up."""
        return (steps >= self.first_step) & (steps < self.first_step + self.num_first)

    def is_evaluation(self, steps: Ints) -> NDArray[np.bool_]:
        """[steps], whether the model is evaluated before."""
        return _every(steps, self.evaluate_every)

    def is_checkpoint(self, steps: Ints) -> NDArray[np.bool_]:
        """[steps], whether the model is saved in the end."""
        return _every(steps, self.checkpoint_every)

    def change(self, drawn: Drawn, seed: int) -> None:
        """Make the odd ones among the steps as long as they are."""
        steps = drawn.steps
        first = np.where(self.is_first(steps), self.first_factor, 1.0)[:, None]
        drawn.forward_s *= first
        drawn.backward_s *= first
        evaluates, saves = self.is_evaluation(steps), self.is_checkpoint(steps)
        for at in np.flatnonzero(evaluates | saves).tolist():
            rng = np.random.default_rng([seed, int(steps[at]), _OF_ODD_STEPS])
            held_up = 1 + _SPREAD * rng.random((2, *drawn.is_silent.shape[::2]))
            if evaluates[at]:
                _pause(drawn, at, self.evaluation_s * held_up[0])
            if saves[at]:
                drawn.once_s["optimizer"][:, 0, at] += self.checkpoint_s * held_up[1]


def sampled(num_steps: int, *, recorded: int = 40, every: int = 400) -> list[int]:
    """The first `num_steps` steps to be recorded, if so many of every so many are.

    Raises:
        InvalidRequest: none would be, or more than there are.
    """
    if not 1 <= recorded <= every:
        raise InvalidRequest(f"{recorded} of every {every} steps: give 1 to {every}")
    return [every * (k // recorded) + k % recorded for k in range(num_steps)]


def _pause(drawn: Drawn, at: int, pause_s: Floats) -> None:
    """Hold everybody up, [stages, dp ranks], before the first forward or what it needs is asked."""
    drawn.forward_delay_s[0, 0, 0, at] += pause_s[0]
    if "forward-recv" in drawn.p2p_delay_s:
        drawn.p2p_delay_s["forward-recv"][1:, 0, 0, at] += pause_s[1:]


def _every(steps: Ints, period: int) -> NDArray[np.bool_]:
    """Every so many steps, but not at the very beginning."""
    if not period:
        return np.zeros(steps.size, np.bool_)
    return np.asarray((steps > 0) & (steps % period == 0))
