"""Which operations should be in a record and are not?"""

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


def are_alike(recorded: Flags) -> bool:
    """Whether all replicas of all steps have the same operations, and nothing is lost."""
    first = recorded[0, 0]
    if not first.any(axis=(1, 2)).all() or _gaps(first).any():
        return False
    return bool((recorded == first).all())


def lost(recorded: Flags, counted: Flags, comes_and_goes: Flags) -> Flags:
    """The operations that a worker must have had, of the shape of `recorded`.

    These are the ones that at least half of the replicas of the same step have; those before one
    with a higher number; and everything on a worker that reported nothing. A lone replica is
    compared with the other steps of as many micro-batches instead.

    Shapes: `recorded` [steps, dp ranks, stages, op types, seq ids]; [op types] each: `counted`
    flags those whose number is that of the micro-batches, `comes_and_goes` those that a step may
    have and the next one not.
    """
    found = _usual(recorded, counted, comes_and_goes) & ~recorded
    found |= _gaps(recorded)
    found[~recorded.any(axis=(3, 4))] = True
    return found


def _usual(recorded: Flags, counted: Flags, comes_and_goes: Flags) -> Flags:
    dp_size = recorded.shape[1]
    if dp_size > 1:
        return np.asarray(2 * np.count_nonzero(recorded, axis=1, keepdims=True) >= dp_size)
    num_microbatches = recorded[:, :, :, counted].sum(axis=4).max(axis=(1, 2, 3), initial=0)
    usual = np.empty_like(recorded)
    for number in np.unique(num_microbatches):
        alike = num_microbatches == number
        usual[alike] = recorded[alike].mean(axis=0) >= 0.5
    usual[:, :, :, comes_and_goes] = False
    return usual


def _gaps(recorded: Flags) -> Flags:
    """Operations are numbered from 0 on each worker, so a number that is left out is a loss."""
    has_later = np.logical_or.accumulate(recorded[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(has_later & ~recorded)
