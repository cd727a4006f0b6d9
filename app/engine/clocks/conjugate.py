"""Normal equations solved without being written down, by conjugate gradients."""

import numpy as np

from app.engine.compiled import kernel

_MAX_PRODUCTS = 500
_SHARE = 0.02  # whoever calls comes again


@kernel
def solve(  # type: ignore[no-untyped-def]
    first_member, host, moments, diagonal, pull, is_free, prior, near_enough
):
    """[hosts, 2], the change of coefficients that the pull asks for; 0 where none is free.

    `moments` [sets, 3] and `diagonal` [hosts, 2] are those of `sums`. It ends where what is left
    would change nothing by more than `near_enough`, or than a share of what it did at first.
    """
    found, left, product = np.zeros_like(pull), pull.copy(), np.empty_like(pull)
    for each in range(is_free.size):
        if not is_free[each]:
            left[each, 0] = left[each, 1] = 0.0
    eased = left / diagonal
    near_enough = max(near_enough, _SHARE * np.max(np.abs(eased)))
    towards, size = eased.copy(), np.sum(left * eased)
    for _ in range(_MAX_PRODUCTS):
        if np.max(np.abs(eased)) <= near_enough:
            break
        _multiply(first_member, host, moments, is_free, prior, towards, product)
        step = size / np.sum(towards * product)
        found += step * towards
        left -= step * product
        eased = left / diagonal
        before, size = size, np.sum(left * eased)
        towards = eased + (size / before) * towards
    return found


@kernel
def _multiply(  # type: ignore[no-untyped-def]
    first_member, host, moments, is_free, prior, coefficients, found
):
    """The normal equations' matrix times coefficients, both [hosts, 2]."""
    found[:, 0] = 0.0
    found[:, 1] = prior * coefficients[:, 1]
    for each in range(first_member.size - 1):
        first, end = first_member[each], first_member[each + 1]
        bias, slope = 0.0, 0.0
        for member in range(first, end):
            bias += coefficients[host[member], 0]
            slope += coefficients[host[member], 1]
        bias, slope = bias / (end - first), slope / (end - first)
        for member in range(first, end):
            of = host[member]
            more_bias, more_slope = coefficients[of, 0] - bias, coefficients[of, 1] - slope
            found[of, 0] += moments[each, 0] * more_bias + moments[each, 1] * more_slope
            found[of, 1] += moments[each, 1] * more_bias + moments[each, 2] * more_slope
    for each in range(is_free.size):
        if not is_free[each]:
            found[each, 0] = found[each, 1] = 0.0
