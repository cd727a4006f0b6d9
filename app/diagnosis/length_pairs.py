"""Do computations take as long as their sequences are? Pairs of figures that show it."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from app.diagnosis.features import Features
from app.engine.replays import WindowReplay
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Trace

STAGE = 0  # the first stage's computations: no loss, and none that it waits for


@dataclass(frozen=True, slots=True)
class LengthPairs:
    """One pair for each micro-batch of a window on one stage.

    `y` is seconds. `x` is the sum of squared sequence lengths, or where nobody sends these,
    `is_lengths` is false: then `x` is the forward and `y` the backward time.
    """

    x: Floats
    y: Floats
    is_lengths: bool


def length_pairs(replay: WindowReplay, steps: Collection[int] | None = None) -> LengthPairs | None:
    """Of all dp ranks in all steps or in these; None where there are fewer than three."""
    chosen = replay.steps if steps is None else tuple(steps)
    pairs = _of_lengths(replay.window.trace, chosen) or _of_directions(replay, chosen)
    return pairs if pairs is not None and pairs.x.size >= 3 else None


def _of_lengths(trace: Trace, steps: tuple[int, ...]) -> LengthPairs | None:
    if trace.seq_len_sq is None:
        return None
    is_forward = (trace.optype == OP_CODES["forward-compute"]) & (trace.stage == STAGE)
    rows = np.flatnonzero(is_forward & (trace.seq_len_sq >= 0) & np.isin(trace.step, steps))
    if not rows.size:
        return None
    return LengthPairs(trace.seq_len_sq[rows].astype(np.float64), trace.duration_s[rows], True)


def _of_directions(replay: WindowReplay, steps: tuple[int, ...]) -> LengthPairs | None:
    """Forward against backward of the same micro-batch: what both have in common is its length."""
    x, y = [], []
    for group in map(Features, replay.groups):
        forward, backward = group.forward, group.backward
        if forward is None or backward is None:
            continue
        chosen = np.isin(group.steps, steps)
        one, other = (each.duration_s[:, STAGE][..., chosen] for each in (forward, backward))
        if one.shape == other.shape:
            x.append(one.ravel())
            y.append(other.ravel())
    return LengthPairs(np.concatenate(x), np.concatenate(y), False) if x else None
