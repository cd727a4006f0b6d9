"""Make computations take longer."""

from app.synth.drawn import Drawn
from app.trace.window import Floats


def lasting(factor: float, lasts: Floats) -> Floats:
    """[steps], the factor where `lasts` is 1.0, and 1.0 where it is 0.0."""
    return 1.0 + (factor - 1.0) * lasts


def scale_worker(drawn: Drawn, dp_rank: int, stage: int, factor: Floats) -> None:
    """Scale one worker's forward and backward computations by `factor` [steps]."""
    for duration_s in (drawn.forward_s, drawn.backward_s):
        duration_s[stage, ..., dp_rank] *= factor


def scale_stage(drawn: Drawn, stage: int, forward: Floats, backward: Floats) -> None:
    """Scale a stage's computations in all replicas by factors [steps] of each direction."""
    for duration_s, factor in ((drawn.forward_s, forward), (drawn.backward_s, backward)):
        duration_s[stage] *= factor[:, None]
