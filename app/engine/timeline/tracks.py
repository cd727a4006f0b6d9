"""On which track of a worker an operation is drawn; no two slices of a track overlap."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.trace.ops import COMPUTE_STREAM, Axis, OpSpec, OpTypes
from app.trace.window import Ints

STEP_END = "step end"
_FIRST = (COMPUTE_STREAM, "forward-recv", "forward-send", "backward-recv", "backward-send")

# So many siblings are shown right below their track, should there ever be more.
_BESIDE = 100

Siblings = NDArray[np.int64]


@dataclass(frozen=True)
class Tracks:
    """The tracks that any worker of a job may have, in the order in which they are shown.

    `of_code` tells every op type's track, as a position in `names`.
    """

    names: tuple[str, ...]
    of_code: dict[int, int]

    @classmethod
    def of(cls, op_types: OpTypes) -> "Tracks":
        """One track a stream; operations without one stand at the end of the step."""
        named = {code: track_name(spec) for code, spec in op_types.by_code.items()}
        middle = [name for name in named.values() if name not in (*_FIRST, STEP_END)]
        names = tuple(dict.fromkeys((*_FIRST, *middle, STEP_END)))
        return cls(names, {code: names.index(name) for code, name in named.items()})

    def thread_id(self, track: Ints, sibling: Siblings) -> Ints:
        """A number of its own for every track and sibling, from 1; viewers sort by it."""
        layer, place = np.divmod(sibling, _BESIDE)
        return np.asarray(1 + (layer * len(self.names) + track) * _BESIDE + place, np.int64)

    def name(self, thread_id: int) -> str:
        """What the track with that number is called."""
        beside, place = divmod(thread_id - 1, _BESIDE)
        layer, track = divmod(beside, len(self.names))
        sibling = layer * _BESIDE + place
        return f"{self.names[track]} ({sibling + 1})" if sibling else self.names[track]


def track_name(spec: OpSpec) -> str:
    """The stream of an op type; what meets all dp ranks outside of one has a track of its own."""
    if spec.stream:
        return spec.stream
    return spec.name if spec.axis is Axis.DP else STEP_END


def siblings(track: Ints, start_ns: Ints, end_ns: Ints) -> Siblings:
    """[ops, lanes], 0 where a slice is drawn on its track itself, n on that track's nth sibling.

    Operations that overlap on one stream are rare, and real where they are recorded: the later
    one moves to the first sibling that is free. So does one without a length that begins together
    with another: a viewer would draw it beneath. Shapes: `track` [ops], times [ops, lanes].
    """
    sibling = np.zeros(start_ns.shape, np.int64)
    for ops in (np.flatnonzero(track == each) for each in np.unique(track)):
        begin_ns, stop_ns = start_ns[ops], end_ns[ops]
        order = np.lexsort((begin_ns - stop_ns, begin_ns), axis=0)  # of a start, longest first
        begin_ns = np.take_along_axis(begin_ns, order, axis=0)
        stop_ns = np.maximum(np.take_along_axis(stop_ns, order, axis=0), begin_ns + 1)
        free_ns = np.maximum.accumulate(stop_ns, axis=0)
        for lane in np.flatnonzero((begin_ns[1:] < free_ns[:-1]).any(axis=0)):
            sibling[ops[order[:, lane]], lane] = _first_free(
                begin_ns[:, lane].tolist(), stop_ns[:, lane].tolist()
            )
    return sibling


def _first_free(start_ns: list[int], end_ns: list[int]) -> list[int]:
    """Slices by start: the first sibling on which the one before has ended."""
    free_ns: list[int] = []
    found = []
    for start, end in zip(start_ns, end_ns, strict=True):
        sibling = next((at for at, free in enumerate(free_ns) if free <= start), len(free_ns))
        free_ns[sibling : sibling + 1] = [end]
        found.append(sibling)
    return found
