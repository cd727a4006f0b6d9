"""How a GPU spends a step, by a plain profile: computing, communicating, copying, idle.

    step = computing + communicating, exposed + copying + idle

Computing is time with at least one computing kernel. Communication is hidden while a computing
kernel runs, else exposed; copying counts where nothing else runs.
docs/feeds/kineto.md defines the figures.

A rank may compute on while its collective waits, as with DDP's buckets and FSDP2's prefetched
gathers. That time is not lost, so it shortens the wait, and the rank arrives that much later:

    transfer = min(stay)       of the occurrence's members, or of all receives of a pair
    hidden   = what the rank computes within [start, end - transfer]
    start    = start + hidden

`transfer_totals` has size and bandwidth of collectives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.waits import WaitIntervals, merged_intervals
from app.result.profile import TransfersRecord
from app.trace.collectives import RECEIVE, SEND, Collectives
from app.trace.readers.kineto.profile import (
    COMMUNICATING,
    COMPUTING,
    PROFILER_STEPS,
    GpuWork,
    RankProfile,
)
from app.trace.window import Floats, Ints


def exposed_waits(table: Collectives, computing: Mapping[int, WaitIntervals]) -> Collectives:
    """The table with waits shortened by the rank's computing, by the table's own clocks."""
    end_s = table.start_s + table.stay_s
    until_s = end_s - transfer_s(table)
    hidden_s = np.zeros(table.num_rows)
    for rank, intervals in computing.items():
        rows = table.rank == rank
        hidden_s[rows] = intervals.until(until_s[rows]) - intervals.until(table.start_s[rows])
    hidden_s = np.maximum(hidden_s, 0.0)
    return replace(table, start_s=table.start_s + hidden_s, stay_s=table.stay_s - hidden_s)


def transfer_s(table: Collectives) -> Floats:
    """[rows], transfer time of the row's occurrence: the shortest stay of its members."""
    keys = occurrence_numbers(table)
    shortest_s = np.full(int(keys.max(initial=-1)) + 1, np.inf)
    np.minimum.at(shortest_s, keys, table.stay_s)
    return shortest_s[keys]


def receives(table: Collectives) -> dict[int, tuple[Floats, Floats]]:
    """By rank, the intervals (start, end) of waiting to receive."""
    waits = _waits(table, _is_kind(table, RECEIVE))
    return {rank: of_rank for rank, of_rank in waits.items() if of_rank[0].size}


def _waits(table: Collectives, chosen: NDArray[np.bool_]) -> dict[int, tuple[Floats, Floats]]:
    """By rank of the table, the intervals (start, end) of waiting in the chosen rows."""
    end_s = table.start_s + table.stay_s - transfer_s(table)
    rows_of = {rank: chosen & (table.rank == rank) for rank in np.unique(table.rank).tolist()}
    return {rank: (table.start_s[rows], end_s[rows]) for rank, rows in rows_of.items()}


def receive_waits_s(table: Collectives) -> dict[tuple[int, int], float]:
    """By (sender, receiver), total seconds that the receiver waited."""
    total_s: dict[tuple[int, int], float] = {}
    is_receive = _is_kind(table, RECEIVE)
    waits_s = table.stay_s - transfer_s(table)
    for group in np.unique(table.group[is_receive]).tolist():
        sender, receiver = table.groups[group].ranks
        total_s[sender, receiver] = float(waits_s[is_receive & (table.group == group)].sum())
    return total_s


def waiting_intervals(table: Collectives) -> dict[int, WaitIntervals]:
    """By rank, merged intervals of waiting in collectives and receives."""
    waits = _waits(table, ~_is_kind(table, SEND))
    return {rank: merged_intervals(start_s, end_s) for rank, (start_s, end_s) in waits.items()}


def occurrence_numbers(table: Collectives) -> Ints:
    """[rows], a number an occurrence; transfers of one pair and kind share it."""
    is_pair = _is_kind(table, RECEIVE) | _is_kind(table, SEND)
    step, sequence = np.where(is_pair, 0, table.step), np.where(is_pair, 0, table.sequence)
    columns = np.stack([table.group, table.kind, step, sequence])
    if not table.num_rows:
        return np.empty(0, np.int64)
    _, numbers = np.unique(columns, axis=1, return_inverse=True)
    return np.asarray(numbers, np.int64).ravel()


def _is_kind(table: Collectives, kind: str) -> NDArray[np.bool_]:
    return np.isin(table.kind, [at for at, name in enumerate(table.kinds) if name == kind])


def transfer_totals(table: Collectives, num_members: Mapping[str, int]) -> list[TransfersRecord]:
    """Collectives by group, kind and size, those with the longest total stay first."""
    if not table.num_rows:
        return []
    keys = np.stack([table.group, table.kind, table.num_bytes])
    kinds, number = np.unique(keys, axis=1, return_inverse=True)
    number = np.asarray(number).ravel()
    occurrences = occurrence_numbers(table)
    totals = []
    for at in range(kinds.shape[1]):
        rows = np.flatnonzero(number == at)
        record = _transfers(table, rows, occurrences[rows], num_members)
        totals.append((float(table.stay_s[rows].sum()), record))
    return [record for _, record in sorted(totals, key=lambda total: -total[0])]


def _transfers(
    table: Collectives, rows: Ints, occurrences: Ints, num_members: Mapping[str, int]
) -> TransfersRecord:
    """The record of rows of one group, kind and size; `occurrences` are theirs."""
    first = int(rows[0])
    group, kind = table.groups[int(table.group[first])], table.kinds[int(table.kind[first])]
    num_bytes = int(table.num_bytes[first])
    num_read = int(np.unique(table.rank[rows]).size)
    is_complete = num_members.get(group.name) == num_read > 1
    stay_s = table.stay_s[rows]
    _, place = np.unique(occurrences, return_inverse=True)
    shortest_s = np.full(int(place.max()) + 1, np.inf)
    np.minimum.at(shortest_s, place, stay_s)
    # Where members were not read, the shortest stay may include a wait.
    is_known = is_complete or kind == RECEIVE
    total_s = float(shortest_s.sum())
    return TransfersRecord(
        group=group.name,
        axis=group.axis,
        kind=kind,
        num_ranks=num_members.get(group.name, len(group.ranks)),
        num_read=num_read,
        num_bytes=num_bytes if num_bytes >= 0 else None,
        num_occurrences=int(stay_s.size if kind in (RECEIVE, SEND) else shortest_s.size),
        stay_s=float(np.median(stay_s)),
        transfer_s=float(np.median(shortest_s)) if is_known else None,
        bandwidth_bytes_s=num_bytes * shortest_s.size / total_s
        if is_known and num_bytes > 0 and total_s > 0
        else None,
    )


@dataclass(frozen=True, slots=True)
class GpuTimeBreakdown:
    """Seconds of each step, all [steps]; the hidden ones are within `computing_s`."""

    step_s: Floats
    computing_s: Floats
    communicating_exposed_s: Floats
    communicating_hidden_s: Floats
    copying_s: Floats
    idle_s: Floats

    def parts(self) -> dict[str, Floats]:
        """All of them by name."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def of_steps(self, at: Ints) -> "GpuTimeBreakdown":
        """Only the steps at these positions."""
        return GpuTimeBreakdown(**{name: part[at] for name, part in self.parts().items()})

    @property
    def coverage(self) -> float:
        """Share of the steps in which the GPU was busy."""
        return float(1.0 - self.idle_s.sum() / self.step_s.sum())


def computing_intervals(work: GpuWork, origin_ns: int) -> WaitIntervals:
    """Merged intervals of computing, in seconds since an origin by the file's clock."""
    return _merged(work, work.kind == COMPUTING, origin_ns)


def kernel_span(profile: RankProfile) -> GpuTimeBreakdown:
    """One step from the first kernel's start to the last one's end, as HolisticTraceAnalysis does.

    With several ProfilerStep marks it leaves out kernels launched in the last one, or before the
    file begins.
    """
    work = profile.work
    if profile.steps_from == PROFILER_STEPS and len(profile.steps) > 1:
        is_earlier = work.launch_ns < profile.host_start_ns[-1]
        chosen = (work.launch_ns >= 0) & is_earlier
        if not chosen.any():
            chosen[:] = True
        work = work.select(chosen)
    bounds_ns = np.array([work.start_ns.min(), work.end_ns.max()], np.int64)
    return gpu_time_breakdown(work, bounds_ns)


def gpu_time_breakdown(work: GpuWork, bounds_ns: Ints) -> GpuTimeBreakdown:
    """The breakdown of steps with these bounds, [steps + 1] ascending."""
    origin_ns = int(bounds_ns[0])
    bounds_s = (bounds_ns - origin_ns) / 1e9
    is_computing, is_comm = work.kind == COMPUTING, work.kind == COMMUNICATING
    compute_s = _within(_merged(work, is_computing, origin_ns), bounds_s)
    comm_s = _within(_merged(work, is_comm, origin_ns), bounds_s)
    both_s = _within(_merged(work, is_computing | is_comm, origin_ns), bounds_s)
    all_s = _within(_merged(work, np.ones(work.kind.size, np.bool_), origin_ns), bounds_s)
    step_s = np.diff(bounds_s)
    return GpuTimeBreakdown(
        step_s=step_s,
        computing_s=compute_s,
        communicating_exposed_s=_positive(both_s - compute_s),
        communicating_hidden_s=_positive(compute_s + comm_s - both_s),
        copying_s=_positive(all_s - both_s),
        idle_s=_positive(step_s - all_s),
    )


def _merged(work: GpuWork, chosen: NDArray[np.bool_], origin_ns: int) -> WaitIntervals:
    start_s = (work.start_ns[chosen] - origin_ns) / 1e9
    return merged_intervals(start_s, (work.end_ns[chosen] - origin_ns) / 1e9)


def _within(intervals: WaitIntervals, bounds_s: Floats) -> Floats:
    return np.diff(intervals.until(bounds_s))


def _positive(seconds: Floats) -> Floats:
    """Without rounding errors of differences."""
    return np.where(seconds > 1e-9, seconds, 0.0)
