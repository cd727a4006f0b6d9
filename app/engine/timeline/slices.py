"""The operations of a run as slices of whole nanoseconds."""

from dataclasses import dataclass

import numpy as np

from app.engine.run import Run
from app.engine.timeline.tracks import Siblings, siblings
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Slices:
    """Operations of one stage on some dp ranks.

    Shapes: all [ops, dp ranks]. A slice ends when its operation does; `wait_ns` is what it waited
    for peers and `transfer_ns` what came after, both negative where hosts' clocks disagree.
    """

    start_ns: Ints
    end_ns: Ints
    wait_ns: Ints
    transfer_ns: Ints
    sibling: Siblings


def slices(run: Run, ops: Ints, dp_ranks: Ints, track: Ints, origin_ns: int) -> Slices:
    """The slices of some operations, with the run's beginning at `origin_ns`.

    `track` is [ops]. Times are rounded one by one, so what met to the nanosecond still does.
    An operation whose transfer is negative may end before it began: it is drawn at its end,
    without a length.
    """
    cells = np.ix_(ops, dp_ranks)
    began_ns = nanoseconds(run.start_s[cells]) + origin_ns
    met_ns = nanoseconds(run.met_s[cells]) + origin_ns
    end_ns = nanoseconds(run.end_s[cells]) + origin_ns
    start_ns = np.minimum(began_ns, end_ns)
    return Slices(
        start_ns,
        end_ns,
        met_ns - began_ns,
        end_ns - met_ns,
        siblings(track, start_ns, end_ns),
    )


def extent_ns(run: Run) -> tuple[int, int]:
    """When the first operation of all workers begins and the last one ends."""
    first_s = min(0.0, float(run.start_s.min()), float(run.end_s.min()))
    bounds = nanoseconds(np.array([first_s, float(run.end_s.max())]))
    return int(bounds[0]), int(bounds[1])


def nanoseconds(seconds: Floats) -> Ints:
    """To the nearest."""
    return np.rint(seconds * 1e9).astype(np.int64)
