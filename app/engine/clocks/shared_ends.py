"""Operations of several hosts that end together, as recorded by each host's own clock.

Members of one collective, and both ends of a p2p pair, end at nearly the same true time. So
where they are recorded at different times, the clocks differ.
"""

from dataclasses import dataclass

import numpy as np

from app.engine.compiled import kernel
from app.engine.graph import ALL_DP_RANKS, EP_BLOCK, NOBODY, StepGraph
from app.engine.grid import Grid
from app.engine.template import Template
from app.trace.ops import NUM_CODES
from app.trace.window import Ints

# So many ends are looked at, one of so many operations: more make it hardly better.
_LEAST_ENDS, _MOST_ENDS, _OPS_PER_END = 1 << 14, 1 << 19, 32
# The same operations of the same workers at least so often, at most so often in a step, and in at
# most so many steps.
_LEAST_TIMES, _MOST_A_STEP, _MOST_STEPS = 16, 8, 64
# Times of a set along the window; few steps are cut into several, so that drift shows.
WANTED_SLOTS = 4


@dataclass(frozen=True, slots=True)
class SharedEnds:
    """Ends that are one moment each, seen by several hosts.

    A set is the same operations of the same workers again and again. Set i has the members
    `first_member[i] : first_member[i + 1]`, each on `host` [members], seen `num_times[i]` times,
    in time's order; the end of its j-th member at its k-th time, by the member's own clock, is
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
    """A sample of them, of all kinds and steps.

    `began_ns` [steps] of each grid is when its steps' times count from; `host` [dp, pp].
    """
    units = [_units(grid.template, graph) for grid, graph in grids]
    num_steps = sum(grid.num_steps for grid, _ in grids)
    at_once = host.shape[0] * max(sum(len(kind) - 1 for kind in each) for each in units)
    num_ends = sum(grid.start_s.size for grid, _ in grids) // _OPS_PER_END
    num_ends = min(max(num_ends, _LEAST_ENDS), _MOST_ENDS)
    times = max(num_ends // max(at_once, 1), _LEAST_TIMES)
    every = -(-num_steps // min(num_steps, times, _MOST_STEPS))
    most = min(max(times // -(-num_steps // every), 1), _MOST_A_STEP)
    parts = [
        _gathered(grid, _kinds(grid.template, each, most), every, began, host)
        for (grid, _), each, began in zip(grids, units, began_ns, strict=True)
    ]
    return _joined(parts, int(host.max()) + 1)


def _units(template: Template, graph: StepGraph) -> dict[tuple[int, ...], list[list[int]]]:
    """Operations that end together, by whom among the dp ranks they meet, types and stages."""
    of_op = (template.stage * NUM_CODES + template.optype).tolist()
    sizes, lead = np.diff(graph.unit_ptr), graph.unit_ops[graph.unit_ptr[:-1]]
    is_shared = ((sizes > 1) | (graph.meets != NOBODY)) & (lead < graph.num_ops)
    found: dict[tuple[int, ...], list[list[int]]] = {}
    unit_ptr, unit_ops, meets = graph.unit_ptr, graph.unit_ops.tolist(), graph.meets
    for unit in np.flatnonzero(is_shared).tolist():
        ops = sorted(unit_ops[unit_ptr[unit] : unit_ptr[unit + 1]], key=of_op.__getitem__)
        kind = (int(meets[unit]), *(of_op[op] for op in ops))
        found.setdefault(kind, []).append(ops)
    return found


def _kinds(template: Template, found: dict[tuple[int, ...], list[list[int]]], most: int) -> _Kinds:
    sizes = template.parallelism
    ranks = {NOBODY: 1, ALL_DP_RANKS: sizes.dp_size, EP_BLOCK: sizes.ep_size}
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
    """Some of them, from the first to the last."""
    if len(units) <= most:
        return units
    return [units[at * len(units) // most + len(units) // (2 * most)] for at in range(most)]


def _gathered(grid: Grid, kinds: _Kinds, every: int, began_ns: Ints, host: Ints) -> SharedEnds:
    """Those of every so-many-th step."""
    dp_size, steps = host.shape[0], np.arange(0, grid.num_steps, every)
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
    of_member = of_member[np.repeat(is_mixed, num_members)]
    kind, first_rank, num_members = kind[is_mixed], first_rank[is_mixed], num_members[is_mixed]
    num_times = used_units[kind] * steps.size
    first_end = np.concatenate(([0], np.cumsum(num_members * num_times)))
    end_ns = np.empty(first_end[-1], np.int64)
    _ends(
        kinds.rows, kinds.first_row, kinds.num_members, kinds.num_ranks, used_units, kind,
        first_rank, first_end, steps, began_ns, grid.start_s, grid.duration_s, end_ns,
    )  # fmt: skip
    return SharedEnds(
        0,
        np.concatenate(([0], np.cumsum(num_members))),
        of_member,
        num_times,
        per_slot[kind],
        first_end,
        end_ns,
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
    """The host of each member of each set, and which sets have several hosts."""
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
