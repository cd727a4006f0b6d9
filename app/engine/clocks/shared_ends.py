"""Ends of one moment, as recorded by several hosts with their own clocks.

Members of a collective, and both sides of a p2p pair, end at nearly the same true time, so
differences between their recorded ends are differences between clocks. Successive ends of one set
are condensed into one value for the least squares.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.graph import ALL_DP_RANKS, EP_BLOCK, NO_PEERS, StepGraph
from app.engine.grid import ABSENT, Grid
from app.engine.medians import medians_of_known
from app.engine.template import Template
from app.trace.ops import NUM_CODES
from app.trace.window import Floats, Ints

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ClockLines:
    """Each clock as a line: the reference time is a clock's time - `offset_ns` - rest.

    rest = bias + slope * (t - middle) / half, where t is the clock's time - `offset_ns`, from the
    nanosecond `origin`. Shapes: [hosts], `coefficients` [hosts, 2] (bias, slope). `drift_error` is
    the standard error of a drift, `spread_ns` the spread of the ends.
    """

    offset_ns: Ints
    origin_ns: int
    middle_ns: float
    half_ns: float
    coefficients: Floats
    drift_error: Floats
    spread_ns: float

    @property
    def drift(self) -> Floats:
        """[hosts], rate of each clock against the reference's, as a plain ratio."""
        return np.asarray(self.coefficients[:, 1] / self.half_ns)

    def corrected(self, end_ns: Ints, host: Ints) -> tuple[Floats, Floats]:
        """Times `end_ns` [sets, members, times] of `host` [sets, members] by the reference.

        Returns:
            The same by the lines, since `origin_ns`, and the t of the lines as (t - middle) / half.
        """
        since_ns = (end_ns - (self.origin_ns + self.offset_ns[host])[..., None]).astype(np.float64)
        when = (since_ns - self.middle_ns) / self.half_ns
        bias_ns, slope_ns = np.moveaxis(self.coefficients[host], -1, 0)
        return since_ns - bias_ns[..., None] - slope_ns[..., None] * when, when


# Number of sampled ends; more hardly improve the result.
_MIN_ENDS, _MAX_ENDS, _OPS_PER_END = 1 << 14, 1 << 19, 32
# Limits of the sample: repetitions of a set, its occurrences in a step, and steps.
_MIN_TIMES, _MAX_PER_STEP, _MAX_STEPS = 16, 8, 64
# So many different sets of absent workers are kept apart.
_MAX_ABSENCES = 4
# Slots of a set along the window; a few steps are split into several, so that drift shows.
WANTED_SLOTS = 4


@dataclass(frozen=True, slots=True)
class Sets:
    """Sets of shared ends of one shape. A set is the same operations of the same workers, repeated.

    Shapes: `host` [sets, members], `end_ns` [sets, members, times], by the member's own clock and
    in order of time. Successive `per_slot` times are one slot.
    """

    host: Ints
    end_ns: Ints
    per_slot: int


@dataclass(frozen=True, slots=True)
class SharedEnds:
    """Ends of shared moments, as recorded by several hosts."""

    num_hosts: int
    of_shape: tuple[Sets, ...]


# Operations that end together, by their dp peers (all, a block, none), types and stages.
Units = dict[tuple[int, ...], list[list[int]]]


def shared_ends(
    grids: list[tuple[Grid, StepGraph]], began_ns: list[Ints], host: Ints
) -> SharedEnds:
    """A sample of the shared ends, over all kinds and steps.

    `began_ns` [steps] of each grid is the origin of its steps' times; `host` [dp, pp].
    """
    units = [_units(grid.template, graph) for grid, graph in grids]
    num_steps = sum(grid.num_steps for grid, _ in grids)
    at_once = host.shape[0] * max(sum(len(kind) - 1 for kind in of_grid) for of_grid in units)
    num_ends = sum(grid.start_s.size for grid, _ in grids) // _OPS_PER_END
    num_ends = min(max(num_ends, _MIN_ENDS), _MAX_ENDS)
    times = max(num_ends // max(at_once, 1), _MIN_TIMES)
    stride = -(-num_steps // min(num_steps, times, _MAX_STEPS))
    most = min(max(times // -(-num_steps // stride), 1), _MAX_PER_STEP)
    samples: list[Sets] = []
    for (grid, _), of_grid, began in zip(grids, units, began_ns, strict=True):
        chosen = {kind: _spread_out(alike, most) for kind, alike in of_grid.items()}
        for steps, is_absent in _by_absence(grid, np.arange(0, grid.num_steps, stride)):
            samples += _gathered(grid, chosen, steps, began, host, is_absent)
    return SharedEnds(int(host.max()) + 1, _joined(samples))


def _units(template: Template, graph: StepGraph) -> Units:
    of_op = (template.stage * NUM_CODES + template.optype).tolist()
    units: Units = {}
    unit_ptr, unit_ops, meets = (
        column.tolist() for column in (graph.unit_ptr, graph.unit_ops, graph.meets)
    )
    for unit in graph.shared_units(np.ones(graph.num_ops, np.bool_)).tolist():
        ops = sorted(unit_ops[unit_ptr[unit] : unit_ptr[unit + 1]], key=of_op.__getitem__)
        units.setdefault((meets[unit], *(of_op[op] for op in ops)), []).append(ops)
    return units


def _spread_out(units: list[list[int]], most: int) -> list[list[int]]:
    """At most so many units, evenly spaced from the first to the last."""
    if len(units) <= most:
        return units
    return [units[at * len(units) // most + len(units) // (2 * most)] for at in range(most)]


def _by_absence(grid: Grid, steps: Ints) -> list[tuple[Ints, Flags]]:
    """Steps from which the same workers are absent, and [dp, pp] which: imputed ends say nothing.

    Workers that come and go are absent from all steps with any absence.
    """
    template = grid.template
    sizes = template.parallelism
    nobody = np.zeros((sizes.dp_size, sizes.pp_size), np.bool_)
    if grid.imputed is None:
        return [(steps, nobody)]
    firsts = np.searchsorted(template.stage, np.arange(sizes.pp_size))
    flags = grid.imputed[firsts] == ABSENT
    by_step = flags.reshape(sizes.pp_size, sizes.dp_size, -1)[..., steps].transpose(2, 1, 0)
    patterns, of_step = np.unique(by_step.reshape(steps.size, -1), axis=0, return_inverse=True)
    if len(patterns) <= _MAX_ABSENCES:
        return [
            (steps[of_step.ravel() == at], pattern.reshape(nobody.shape))
            for at, pattern in enumerate(patterns)
        ]
    is_partial = by_step.any(axis=(1, 2))
    parts = [(steps[~is_partial], nobody), (steps[is_partial], by_step.any(axis=0))]
    return [part for part in parts if part[0].size]


def _gathered(
    grid: Grid, units: Units, steps: Ints, began_ns: Ints, host: Ints, is_absent: Flags
) -> Iterable[Sets]:
    """Ends in these steps, without those of absent workers [dp, pp]."""
    sizes = grid.template.parallelism
    met = {NO_PEERS: 1, ALL_DP_RANKS: sizes.dp_size, EP_BLOCK: sizes.ep_size}
    by_shape: dict[tuple[int, int, int], list[list[list[int]]]] = defaultdict(list)
    for kind, of_kind in units.items():
        by_shape[met[kind[0]], len(of_kind), len(of_kind[0])].append(of_kind)
    for (num_ranks, num_units, _), alike in by_shape.items():
        slots_a_step = min(-(-WANTED_SLOTS // steps.size), num_units)
        per_slot = num_units // slots_a_step
        rows = np.array(alike, np.int64)[:, : per_slot * slots_a_step]  # [kinds, units, members]
        ranks = np.arange(sizes.dp_size).reshape(-1, num_ranks)  # [groups, ranks]
        stage = grid.template.stage[rows[:, 0]][:, None, :, None]
        hosts = host[ranks[:, None, :], stage].reshape(len(rows) * len(ranks), -1)
        is_mixed = (hosts != hosts[:, :1]).any(axis=1)
        if not is_mixed.any():
            continue
        number, group = np.divmod(np.flatnonzero(is_mixed), len(ranks))
        end_ns = _ends_ns(grid, rows[number], ranks[group], steps, began_ns)
        if not is_absent.any():
            yield Sets(hosts[is_mixed], end_ns, per_slot)
            continue
        is_present = ~is_absent[ranks[:, None, :], stage].reshape(hosts.shape)[is_mixed]
        yield from _without(hosts[is_mixed], end_ns, per_slot, is_present)


def _ends_ns(grid: Grid, rows: Ints, ranks: Ints, steps: Ints, began_ns: Ints) -> Ints:
    """[sets, members, times], ends of `rows` [sets, units, members] on `ranks` [sets, ranks]."""
    lanes = ranks[:, :, None] * grid.num_steps + steps
    at = (rows[:, :, :, None, None], lanes[:, None, None])  # [sets, units, members, ranks, steps]
    # Whole nanoseconds on the wire: nothing is lost.
    start_ns, duration_ns = (
        np.rint(times_s[at] * 1e9).astype(np.int64) for times_s in (grid.start_s, grid.duration_s)
    )
    end_ns = (began_ns[steps] + start_ns + duration_ns).transpose(0, 2, 3, 4, 1)
    return np.asarray(end_ns.reshape(len(rows), rows.shape[2] * ranks.shape[1], -1))


def _without(host: Ints, end_ns: Ints, per_slot: int, is_present: Flags) -> Iterable[Sets]:
    """Sets of the members that are there [sets, members], without sets on one host then."""
    num_present = is_present.sum(axis=1)
    for size in np.unique(num_present[num_present > 1]).tolist():
        chosen = num_present == size
        kept = host[chosen][is_present[chosen]].reshape(-1, size)
        is_mixed = (kept != kept[:, :1]).any(axis=1)
        ends_ns = end_ns[chosen][is_present[chosen]].reshape(-1, size, end_ns.shape[2])
        if is_mixed.any():
            yield Sets(kept[is_mixed], ends_ns[is_mixed], per_slot)


def _joined(samples: Iterable[Sets]) -> tuple[Sets, ...]:
    """The samples, with all sets of one shape together."""
    by_shape: dict[tuple[int, ...], list[Sets]] = defaultdict(list)
    for sets in samples:
        by_shape[*sets.end_ns.shape[1:], sets.per_slot].append(sets)
    return tuple(
        Sets(
            np.concatenate([sets.host for sets in alike]),
            np.concatenate([sets.end_ns for sets in alike]),
            alike[0].per_slot,
        )
        for alike in by_shape.values()
    )


@dataclass(frozen=True, slots=True)
class Slots:
    """One value per slot and member: its distance from the others, in sets of so many members.

    Shapes: `host` [sets, members]; `of_set` [slots], `apart_ns` [slots, members], `time` and
    `weight` (the number of ends per value) [slots].
    """

    host: Ints
    of_set: Ints
    apart_ns: Floats
    time: Floats
    weight: Floats

    def moments(self) -> Floats:
        """[sets, 3], sums over a set's slots of weight, weight * time and weight * time ** 2."""
        powers = (self.weight, self.weight * self.time, self.weight * self.time**2)
        sums = [np.bincount(self.of_set, power, len(self.host)) for power in powers]
        return np.stack(sums, axis=1)


def condense(shared: SharedEnds, lines: ClockLines) -> list[Slots]:
    """The ends condensed, after correction by the current lines; by the number of members."""
    by_size: dict[int, list[Slots]] = defaultdict(list)
    for sets in shared.of_shape:
        by_size[sets.host.shape[1]].append(_condensed(sets, lines))
    return [_with_all(alike) for alike in by_size.values()]


def _condensed(sets: Sets, lines: ClockLines) -> Slots:
    """For each member and slot, the median distance of its ends from the members' mean.

    The members' median is subtracted, so that one very late member does not move the others.
    """
    num_sets, num_members, num_times = sets.end_ns.shape
    num_slots = num_times // sets.per_slot
    far_ns, when = lines.corrected(sets.end_ns, sets.host)
    far_ns -= far_ns.mean(axis=1, keepdims=True)
    by_slot = far_ns.reshape(num_sets, num_members, num_slots, sets.per_slot)
    apart_ns = (medians_of_known(by_slot) if sets.per_slot > 1 else by_slot[..., 0]).transpose(
        0, 2, 1
    )
    if num_members > 2:
        apart_ns = apart_ns - medians_of_known(apart_ns)[..., None]
    return Slots(
        sets.host,
        np.repeat(np.arange(num_sets), num_slots),
        apart_ns.reshape(-1, num_members),
        when.mean(axis=1).reshape(-1, sets.per_slot).mean(axis=1),
        np.full(num_sets * num_slots, float(sets.per_slot)),
    )


def _with_all(alike: list[Slots]) -> Slots:
    if len(alike) == 1:
        return alike[0]
    first = np.cumsum([0, *(len(slots.host) for slots in alike[:-1])])
    return Slots(
        np.concatenate([slots.host for slots in alike]),
        np.concatenate([slots.of_set + since for slots, since in zip(alike, first, strict=True)]),
        np.concatenate([slots.apart_ns for slots in alike]),
        np.concatenate([slots.time for slots in alike]),
        np.concatenate([slots.weight for slots in alike]),
    )
