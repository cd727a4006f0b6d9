"""Ends of one moment, as recorded by several hosts with their own clocks.

Members of a collective, and both sides of a p2p pair, end at nearly the same true time, so
differences between their recorded ends are differences between clocks. Successive ends of one set
are condensed into one value for the least squares.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.graph import ALL_DP_RANKS, EP_BLOCK, NO_PEERS, StepGraph
from app.engine.grid import ABSENT, Grid
from app.engine.kernels import kernel
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


# Number of sampled ends; more hardly improve the result.
_MIN_ENDS, _MAX_ENDS, _OPS_PER_END = 1 << 14, 1 << 19, 32
# Limits of the sample: repetitions of a set, its occurrences in a step, and steps.
_MIN_TIMES, _MAX_PER_STEP, _MAX_STEPS = 16, 8, 64
# So many different sets of absent workers are kept apart.
_MAX_ABSENCES = 4
# Slots of a set along the window; a few steps are split into several, so that drift shows.
WANTED_SLOTS = 4


@dataclass(frozen=True, slots=True)
class SharedEnds:
    """Ends of shared moments, as recorded by several hosts.

    A set is the same operations of the same workers, repeated. Set i has the members
    `first_member[i] : first_member[i + 1]`, each on `host` [members], seen `num_times[i]` times in
    order of time; the end of its j-th member at its k-th time, by the member's own clock, is
    `end_ns[first_end[i] + j * num_times[i] + k]`. Successive `per_slot[i]` times are one slot.
    """

    num_hosts: int
    first_member: Ints
    host: Ints
    num_times: Ints
    per_slot: Ints
    first_end: Ints
    end_ns: Ints

    @property
    def num_sets(self) -> int:
        """Number of sets."""
        return int(self.num_times.size)


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Kinds of sets: operations of the same type and stage, all of one shape.

    Shapes: [kinds], but for `rows` (those of kind i from `first_row[i]` on, unit by unit).
    """

    rows: Ints
    first_row: Ints
    num_units: Ints
    num_members: Ints  # of one replica
    num_ranks: Ints  # of dp ranks that meet


def shared_ends(
    grids: list[tuple[Grid, StepGraph]], began_ns: list[Ints], host: Ints
) -> SharedEnds:
    """A sample of the shared ends, over all kinds and steps.

    `began_ns` [steps] of each grid is the origin of its steps' times; `host` [dp, pp].
    """
    units = [_units(grid.template, graph) for grid, graph in grids]
    num_steps = sum(grid.num_steps for grid, _ in grids)
    at_once = host.shape[0] * max(sum(len(kind) - 1 for kind in each) for each in units)
    num_ends = sum(grid.start_s.size for grid, _ in grids) // _OPS_PER_END
    num_ends = min(max(num_ends, _MIN_ENDS), _MAX_ENDS)
    times = max(num_ends // max(at_once, 1), _MIN_TIMES)
    every = -(-num_steps // min(num_steps, times, _MAX_STEPS))
    most = min(max(times // -(-num_steps // every), 1), _MAX_PER_STEP)
    parts = []
    for (grid, _), each, began in zip(grids, units, began_ns, strict=True):
        kinds, sampled = _kinds(grid.template, each, most), np.arange(0, grid.num_steps, every)
        parts += [
            _gathered(grid, kinds, steps, began, host, is_absent)
            for steps, is_absent in _by_absence(grid, sampled)
        ]
    return _joined(parts, int(host.max()) + 1)


def _units(template: Template, graph: StepGraph) -> dict[tuple[int, ...], list[list[int]]]:
    """Operations that end together, by their dp peers (all, a block, none), types and stages."""
    of_op = (template.stage * NUM_CODES + template.optype).tolist()
    sizes, lead = np.diff(graph.unit_ptr), graph.unit_ops[graph.unit_ptr[:-1]]
    is_shared = ((sizes > 1) | (graph.meets != NO_PEERS)) & (lead < graph.num_ops)
    found: dict[tuple[int, ...], list[list[int]]] = {}
    unit_ptr, unit_ops, meets = graph.unit_ptr, graph.unit_ops.tolist(), graph.meets
    for unit in np.flatnonzero(is_shared).tolist():
        ops = sorted(unit_ops[unit_ptr[unit] : unit_ptr[unit + 1]], key=of_op.__getitem__)
        kind = (int(meets[unit]), *(of_op[op] for op in ops))
        found.setdefault(kind, []).append(ops)
    return found


def _kinds(template: Template, found: dict[tuple[int, ...], list[list[int]]], most: int) -> _Kinds:
    sizes = template.parallelism
    ranks = {NO_PEERS: 1, ALL_DP_RANKS: sizes.dp_size, EP_BLOCK: sizes.ep_size}
    chosen = [_spread_out(units, most) for units in found.values()]
    rows = [op for units in chosen for ops in units for op in ops]
    num_units = np.array([len(units) for units in chosen], np.int64)
    num_members = np.array([len(units[0]) for units in chosen], np.int64)
    return _Kinds(
        np.array(rows, np.int64),
        np.cumsum(num_units * num_members) - num_units * num_members,
        num_units,
        num_members,
        np.array([ranks[kind[0]] for kind in found], np.int64),
    )


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
            (steps[of_step.ravel() == at], each.reshape(nobody.shape))
            for at, each in enumerate(patterns)
        ]
    is_whole = ~by_step.any(axis=(1, 2))
    parts = [(steps[is_whole], nobody), (steps[~is_whole], by_step.any(axis=0))]
    return [part for part in parts if part[0].size]


def _gathered(
    grid: Grid, kinds: _Kinds, steps: Ints, began_ns: Ints, host: Ints, is_absent: Flags
) -> SharedEnds:
    """Ends in these steps, without those of absent workers [dp, pp]."""
    dp_size = host.shape[0]
    slots = -(-WANTED_SLOTS // steps.size)
    slots_a_step = np.minimum(slots, kinds.num_units)
    per_slot = kinds.num_units // np.maximum(slots_a_step, 1)
    used_units = per_slot * slots_a_step
    sets_of = dp_size // kinds.num_ranks
    kind = np.repeat(np.arange(sets_of.size), sets_of)
    first_rank = (np.arange(kind.size) - (np.cumsum(sets_of) - sets_of)[kind]) * kinds.num_ranks[
        kind
    ]
    num_members = (kinds.num_members * kinds.num_ranks)[kind]
    first_member = np.concatenate(([0], np.cumsum(num_members)))
    of_member = np.empty(first_member[-1], np.int64)
    is_mixed = np.zeros(kind.size, np.bool_)
    _members(
        kinds.rows, kinds.first_row, kinds.num_members, kinds.num_ranks, kind, first_rank,
        first_member, grid.template.stage, host, of_member, is_mixed,
    )  # fmt: skip
    gone = np.zeros(of_member.size, np.int64)
    if is_absent.any():
        _members(
            kinds.rows, kinds.first_row, kinds.num_members, kinds.num_ranks, kind, first_rank,
            first_member, grid.template.stage, is_absent.astype(np.int64), gone,
            np.zeros_like(is_mixed),
        )  # fmt: skip
    gone = gone[np.repeat(is_mixed, num_members)]
    of_member = of_member[np.repeat(is_mixed, num_members)]
    kind, first_rank, num_members = kind[is_mixed], first_rank[is_mixed], num_members[is_mixed]
    num_times = used_units[kind] * steps.size
    first_end = np.concatenate(([0], np.cumsum(num_members * num_times)))
    end_ns = np.empty(first_end[-1], np.int64)
    _ends(
        kinds.rows, kinds.first_row, kinds.num_members, kinds.num_ranks, used_units, kind,
        first_rank, first_end, steps, began_ns, grid.start_s, grid.duration_s, end_ns,
    )  # fmt: skip
    found = SharedEnds(
        0,
        np.concatenate(([0], np.cumsum(num_members))),
        of_member,
        num_times,
        per_slot[kind],
        first_end,
        end_ns,
    )
    return _without(found, gone > 0) if gone.any() else found


def _without(shared: SharedEnds, is_left_out: Flags) -> SharedEnds:
    """The sets without some members [members], and without sets that are on one host then."""
    of_set = np.repeat(np.arange(shared.num_sets), np.diff(shared.first_member))
    lowest, highest = np.full(shared.num_sets, np.iinfo(np.int64).max), np.full(shared.num_sets, -1)
    kept = ~is_left_out
    np.minimum.at(lowest, of_set[kept], shared.host[kept])
    np.maximum.at(highest, of_set[kept], shared.host[kept])
    is_mixed = lowest < highest
    kept &= is_mixed[of_set]
    sizes = np.bincount(of_set[kept], minlength=shared.num_sets)[is_mixed]
    num_times = shared.num_times[is_mixed]
    return SharedEnds(
        shared.num_hosts,
        np.concatenate(([0], np.cumsum(sizes))),
        shared.host[kept],
        num_times,
        shared.per_slot[is_mixed],
        np.concatenate(([0], np.cumsum(sizes * num_times))),
        shared.end_ns[np.repeat(kept, shared.num_times[of_set])],
    )


def _joined(parts: list[SharedEnds], num_hosts: int) -> SharedEnds:
    members = np.cumsum([0, *(part.host.size for part in parts)])
    ends = np.cumsum([0, *(part.end_ns.size for part in parts)])
    return SharedEnds(
        num_hosts,
        _pointers([part.first_member for part in parts], members),
        np.concatenate([part.host for part in parts]),
        np.concatenate([part.num_times for part in parts]),
        np.concatenate([part.per_slot for part in parts]),
        _pointers([part.first_end for part in parts], ends),
        np.concatenate([part.end_ns for part in parts]),
    )


def _pointers(parts: list[Ints], since: Ints) -> Ints:
    moved = [part[:-1] + first for part, first in zip(parts, since[:-1], strict=True)]
    return np.concatenate([*moved, since[-1:]])


@kernel
def _members(  # type: ignore[no-untyped-def]
    rows, first_row, num_members, num_ranks, kind, first_rank, first_member, stage, host_of,
    host, is_mixed,
):  # fmt: skip
    """Hosts of the members of each set, and which sets have several hosts."""
    for each in range(kind.size):
        of, at = kind[each], first_member[each]
        for member in range(num_members[of]):
            p = stage[rows[first_row[of] + member]]
            for rank in range(first_rank[each], first_rank[each] + num_ranks[of]):
                host[at] = host_of[rank, p]
                is_mixed[each] |= host[at] != host[first_member[each]]
                at += 1


@kernel
def _ends(  # type: ignore[no-untyped-def]
    rows, first_row, num_members, num_ranks, num_units, kind, first_rank, first_end, steps,
    began_ns, start_s, duration_s, end_ns,
):  # fmt: skip
    num_steps = began_ns.size
    for each in range(kind.size):
        of, at = kind[each], first_end[each]
        for member in range(num_members[of]):
            for rank in range(first_rank[each], first_rank[each] + num_ranks[of]):
                for step in steps:
                    lane = rank * num_steps + step
                    for unit in range(num_units[of]):
                        op = rows[first_row[of] + unit * num_members[of] + member]
                        # Whole nanoseconds on the wire: nothing is lost.
                        began, took = start_s[op, lane] * 1e9, duration_s[op, lane] * 1e9
                        end_ns[at] = (
                            began_ns[step] + np.int64(np.rint(began)) + np.int64(np.rint(took))
                        )
                        at += 1


@dataclass(frozen=True, slots=True)
class CondensedEnds:
    """One value per slot: each member's distance from the others, and its time.

    Slot s of set i is `first_slot[i] + s`, the value of its j-th member at
    `first_value[i] + j * slots + s`. `weight` [sets] is the number of ends per value.
    """

    first_slot: Ints
    first_value: Ints
    apart_ns: Floats
    time: Floats
    weight: Floats

    def moments(self) -> Floats:
        """[sets, 3], sums over a set's slots of weight, weight * time and weight * time ** 2."""
        powers = (np.ones_like(self.time), self.time, self.time**2)
        firsts = self.first_slot[:-1]
        sums = [np.add.reduceat(each, firsts) * self.weight for each in powers]
        return np.stack(sums, axis=1)


def condense(shared: SharedEnds, found: ClockLines) -> CondensedEnds:
    """The ends condensed, after correction by the current lines."""
    num_slots = shared.num_times // shared.per_slot
    num_members = np.diff(shared.first_member)
    first_slot = np.concatenate(([0], np.cumsum(num_slots)))
    first_value = np.concatenate(([0], np.cumsum(num_slots * num_members)))
    apart_ns, time = np.empty(first_value[-1]), np.empty(first_slot[-1])
    _in_slots(
        shared.first_member, shared.host, shared.num_times, shared.per_slot, shared.first_end,
        shared.end_ns, found.offset_ns, found.origin_ns, found.middle_ns, found.half_ns,
        found.coefficients, first_slot, first_value, apart_ns, time,
    )  # fmt: skip
    return CondensedEnds(
        first_slot, first_value, apart_ns, time, shared.per_slot.astype(np.float64)
    )


@kernel
def _in_slots(  # type: ignore[no-untyped-def]
    first_member, host, num_times, per_slot, first_end, end_ns, offset_ns, origin_ns, middle_ns,
    half_ns, coefficients, first_slot, first_value, apart_ns, time,
):  # fmt: skip
    """For each member and slot, the median distance of its ends from the members' mean.

    The members' median is subtracted, so that one very late member does not move the others.
    """
    for each in range(num_times.size):
        first, end, times = first_member[each], first_member[each + 1], num_times[each]
        slots = times // per_slot[each]
        mean_ns, mean_time = np.zeros(times), np.zeros(times)
        far_ns, medians_ns = np.empty((end - first, times)), np.empty(end - first)
        sorted_ns = np.empty(per_slot[each])
        for member in range(end - first):
            of = host[first + member]
            bias_ns, slope_ns = coefficients[of, 0], coefficients[of, 1]
            at = first_end[each] + member * times
            for k in range(times):
                since_ns = np.float64(end_ns[at + k] - origin_ns - offset_ns[of])
                when = (since_ns - middle_ns) / half_ns
                far_ns[member, k] = since_ns - bias_ns - slope_ns * when
                mean_ns[k] += far_ns[member, k] / (end - first)
                mean_time[k] += when / (end - first)
        for slot in range(slots):
            low, high = slot * per_slot[each], (slot + 1) * per_slot[each]
            time[first_slot[each] + slot] = np.mean(mean_time[low:high])
            for member in range(end - first):
                medians_ns[member] = _median(far_ns[member], mean_ns, low, high, sorted_ns)
            centre_ns = np.median(medians_ns) if end - first > 2 else 0.0
            for member in range(end - first):
                value = first_value[each] + member * slots + slot
                apart_ns[value] = medians_ns[member] - centre_ns


@kernel
def _median(far_ns, mean_ns, low, high, sorted_ns):  # type: ignore[no-untyped-def]
    """Median of a few differences, by insertion sort."""
    for at in range(low, high):
        value, place = far_ns[at] - mean_ns[at], at - low
        while place > 0 and sorted_ns[place - 1] > value:
            sorted_ns[place] = sorted_ns[place - 1]
            place -= 1
        sorted_ns[place] = value
    size = high - low
    return 0.5 * (sorted_ns[(size - 1) // 2] + sorted_ns[size // 2])
