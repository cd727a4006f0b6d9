"""How often to write checkpoints, and what a restart costs.

Failures are a Poisson process with mean time M between them (MTBF); delta is what one checkpoint
costs, tau the computing time between two, R the restart. All in one unit, whichever it is.

Sources: Young 1974; Daly 2006, "A higher order estimate of the optimum checkpoint interval".
"""

from math import isfinite, sqrt

from app.errors import InvalidRequest

# Daly's expansion holds below; from there on a checkpoint is written once in M.
_LARGEST_COST = 2.0


def young_interval(checkpoint: float, mtbf: float) -> float:
    """tau of first order: sqrt(2 delta M).

    Raises:
        InvalidRequest: a time is not above 0.
    """
    _check(checkpoint_cost=checkpoint, mtbf=mtbf)
    return sqrt(2 * checkpoint * mtbf)


def daly_interval(checkpoint: float, mtbf: float) -> float:
    """tau of higher order, without the checkpoint's own time; M where delta is 2 M or more.

    sqrt(2 delta M) (1 + sqrt(x) / 3 + x / 9) - delta, with x = delta / (2 M)

    Raises:
        InvalidRequest: a time is not above 0.
    """
    _check(checkpoint_cost=checkpoint, mtbf=mtbf)
    if checkpoint >= _LARGEST_COST * mtbf:
        return mtbf
    x = checkpoint / (2 * mtbf)
    return young_interval(checkpoint, mtbf) * (1 + sqrt(x) / 3 + x / 9) - checkpoint


def restart_cost(restart: float, interval: float) -> float:
    """Expected time lost by one stop at any moment: the restart, and half an interval done again.

    Raises:
        InvalidRequest: a time is below 0.
    """
    _check(at_least_0=True, restart=restart, interval=interval)
    return restart + interval / 2


def _check(*, at_least_0: bool = False, **times: float) -> None:
    for name, value in times.items():
        if not (isfinite(value) and (value > 0 or (at_least_0 and value == 0))):
            raise InvalidRequest(
                f"{name.replace('_', ' ')} is {value}: "
                f"give a number {'of 0 or more' if at_least_0 else 'above 0'}"
            )
