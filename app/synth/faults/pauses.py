"""Stop workers for a while, inside a computation or before it."""

import numpy as np

from app.synth.drawn import Annotation, Drawn
from app.trace.ops import Direction
from app.trace.window import Floats


def struck(drawn: Drawn, lasts: Floats) -> list[tuple[int, int]]:
    """Position and number of each step in which a fault lasts."""
    return [(at, int(drawn.steps[at])) for at in np.flatnonzero(lasts).tolist()]


def around(usual: float, spread: float, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Log-normal numbers of which half are below `usual`; `spread` is that of their logarithm."""
    return np.asarray(usual * np.exp(spread * rng.standard_normal(shape)), np.float64)


def pause(drawn: Drawn, annotation: Annotation, *, is_sent: bool) -> None:
    """Make the computation longer; the annotation is kept if the client tells of it."""
    where = annotation.stage, annotation.chunk, annotation.microbatch
    is_forward = annotation.direction is Direction.FORWARD
    duration_s = drawn.forward_s if is_forward else drawn.backward_s
    duration_s[(*where, annotation.step, annotation.dp_rank)] += annotation.duration_s
    if is_sent:
        drawn.annotations.append(annotation)
