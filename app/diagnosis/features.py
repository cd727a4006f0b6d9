"""The computations of a group of steps, by worker, item and step.

An item is one micro-batch in one model chunk. A detector asks the case for what it needs; each
figure is computed once, when it is first asked for:

    case.forward.mean_s, .least_s          [steps, dp, pp], a worker's computations in a step
    case.signals["compute_s"]              [steps, dp, pp], see signals.py
    for group in case.groups:              steps of equal structure (app.engine.replays)
        group.forward.duration_s           [dp, pp, items, steps], each computation
        group.forward.rows                 [pp, items, parts], the template's rows behind them
        case.at(group)                     positions of the group's steps in `case.steps`
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.engine.template import Template
from app.engine.what_if import Replayer
from app.trace.ops import NUM_CODES, Direction, Kind
from app.trace.window import Floats, Ints

# The second half of a backward that a zero-bubble schedule has split.
_SECOND_HALF = "backward-weight-compute"


@dataclass(frozen=True)
class Computations:
    """Forward or backward computations of a group of steps; their halves, if split, are added up.

    Shapes: `rows` [pp, items, parts], the template's, -1 where a stage has none; `chunk` and
    `microbatch` [items].
    """

    replayer: Replayer
    rows: Ints
    chunk: Ints
    microbatch: Ints

    @cached_property
    def shared(self) -> Ints:
        """[shared items], the items that every stage has."""
        return np.flatnonzero((self.rows[:, :, 0] >= 0).all(axis=0))

    @cached_property
    def duration_s(self) -> Floats:
        """[dp, pp, shared items, steps], seconds."""
        own_s, rows = self.replayer.durations.recorded_s, self.rows[:, self.shared]
        found = own_s[rows[:, :, 0]]
        for part in range(1, rows.shape[2]):
            row = rows[:, :, part]
            found += np.where((row >= 0)[..., None], own_s[row], 0.0)
        sizes = (*found.shape[:2], self.replayer.dp_size, len(self.replayer.steps))
        return found.reshape(sizes).transpose(2, 0, 1, 3)

    @cached_property
    def pace(self) -> "Pace":
        """What each worker's computations took in each step."""
        own_s, num_stages = self.replayer.durations.recorded_s, self.rows.shape[0]
        mean_s, least_s = (np.empty((num_stages, own_s.shape[1])) for _ in range(2))
        in_parallel(
            self.rows.size * own_s.shape[1],
            num_stages,
            lambda first, end: _pace(own_s, self.rows, first, end, mean_s, least_s),
        )
        return Pace(*(self._by_step(each) for each in (mean_s, least_s)))

    def _by_step(self, of_lanes: Floats) -> Floats:
        sizes = (of_lanes.shape[0], self.replayer.dp_size, len(self.replayer.steps))
        return of_lanes.reshape(sizes).transpose(2, 1, 0)


@dataclass(frozen=True, slots=True)
class Pace:
    """What a worker's computations of one direction took in a step, [steps, dp, pp] seconds.

    `mean_s` leaves out the longest and the shortest of three and more, so that a lone pause does
    not count; `least_s` is the shortest.
    """

    mean_s: Floats
    least_s: Floats


@dataclass(frozen=True)
class Features:
    """One group of steps of equal structure, as detectors see it."""

    replayer: Replayer

    @cached_property
    def forward(self) -> Computations | None:
        """Forward computations; None where some stage has none."""
        return _computations(self.replayer, _codes(self.replayer.template, Direction.FORWARD))

    @cached_property
    def backward(self) -> Computations | None:
        """Backward computations; None where some stage has none."""
        return _computations(self.replayer, _codes(self.replayer.template, Direction.BACKWARD))

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps, ascending."""
        return self.replayer.steps

    @cached_property
    def computed_rows(self) -> Ints:
        """[2, pp, items], the template's forward and backward of each item, -1 where it has none.

        Of split backwards the first halves.
        """
        both = (self.forward, self.backward)
        keys = [_items(each) for each in both]
        items = np.union1d(*keys)
        rows = np.full((2, self.replayer.pp_size, items.size), -1, np.int64)
        for of_direction, each, mine in zip(rows, both, keys, strict=True):
            if each is not None:
                of_direction[:, np.searchsorted(items, mine)] = each.rows[:, :, 0]
        return rows

    @cached_property
    def that_compute(self) -> Ints:
        """[computing ops], rows of the template."""
        by_code = self.replayer.template.op_types.by_code
        present = self.replayer.template.present
        return ops_of(
            self.replayer.template,
            [code for code in present if by_code[code].kind is Kind.COMPUTE],
        )


def _items(side: Computations | None) -> Ints:
    """[items] as one number each, ascending as chunk and micro-batch are."""
    if side is None:
        return np.empty(0, np.int64)
    return (side.chunk << 32) + side.microbatch


def _codes(template: Template, direction: Direction) -> list[int]:
    found = []
    for code in template.present:
        spec = template.op_types.by_code[code]
        is_second_half = spec.name == _SECOND_HALF and direction is Direction.BACKWARD
        if is_second_half or (spec.kind is Kind.COMPUTE and spec.direction is direction):
            found.append(code)
    return found


def ops_of(template: Template, codes: list[int]) -> Ints:
    """[ops], the template's operations of some types."""
    is_one = np.zeros(NUM_CODES, np.bool_)
    is_one[codes] = True
    return np.flatnonzero(is_one[template.optype])


def _computations(replayer: Replayer, codes: list[int]) -> Computations | None:
    template = replayer.template
    ops = ops_of(template, codes)
    stage, chunk, microbatch = template.stage[ops], template.mc[ops], template.mb_id[ops]
    if np.unique(stage).size < replayer.pp_size:
        return None
    if microbatch.min() < 0:
        microbatch = template.seq_id[ops]
    width = int(microbatch.max()) + 1
    keys, item = np.unique(chunk * width + microbatch, return_inverse=True)
    place = stage * keys.size + item
    order = np.argsort(place, kind="stable")
    place = place[order]
    part = np.arange(place.size) - np.searchsorted(place, place)
    rows = np.full((replayer.pp_size * keys.size, int(part.max()) + 1), -1, np.int64)
    rows[place, part] = ops[order]
    shape = (replayer.pp_size, keys.size, rows.shape[1])
    return Computations(replayer, rows.reshape(shape), keys // width, keys % width)


@kernel
def _pace(own_s, rows, first, end, mean_s, least_s):  # type: ignore[no-untyped-def]
    num_lanes = own_s.shape[1]
    took_s, longest_s = np.empty(num_lanes), np.empty(num_lanes)
    for stage in range(first, end):
        total_s, shortest_s = mean_s[stage], least_s[stage]
        total_s[:] = 0.0
        longest_s[:] = -np.inf
        shortest_s[:] = np.inf
        count = 0
        for item in range(rows.shape[1]):
            if rows[stage, item, 0] < 0:
                continue
            count += 1
            took_s[:] = own_s[rows[stage, item, 0]]
            for part in range(1, rows.shape[2]):
                if rows[stage, item, part] >= 0:
                    took_s += own_s[rows[stage, item, part]]
            for lane in range(num_lanes):
                total_s[lane] += took_s[lane]
                longest_s[lane] = max(longest_s[lane], took_s[lane])
                shortest_s[lane] = min(shortest_s[lane], took_s[lane])
        if count >= 3:
            for lane in range(num_lanes):
                total_s[lane] = (total_s[lane] - longest_s[lane] - shortest_s[lane]) / (count - 2)
        else:
            total_s /= count
