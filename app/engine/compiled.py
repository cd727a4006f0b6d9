"""How kernels are compiled: once for a machine if the result can be kept, else in each process."""

from collections.abc import Callable
from typing import Any

from numba import njit

Function = Callable[..., Any]

# All of them, so that it can be checked that the warm-up leaves none to be compiled later.
KERNELS: list[Any] = []


def kernel(function: Function) -> Function:
    """The function, compiled at its first call; other threads run while it does."""
    try:
        compiled: Function = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Neither the package's directory nor the user's can be written to.
        compiled = njit(nogil=True)(function)
    KERNELS.append(compiled)
    return compiled
