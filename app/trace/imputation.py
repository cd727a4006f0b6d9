"""Completes steps that lack some operations, so that the rest of them can be analysed.

`impute` decides from the rows alone, so that live and recorded data are treated alike. A lone
operation that was lost takes the median duration of the same operation on the other dp ranks of its
stage; with one dp rank that of the same operation in other steps. A worker that lacks more than a
small share of its operations is absent from the step: all of its operations are imputed, at the
times of a typical peer, its donor. A step stays skipped where a stage has too few present workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.completeness import (
    Flags,
    RecordTable,
    numbering_gaps,
    tabulate,
    usual_operations,
)
from app.trace.ops import NUM_CODES, OpKind
from app.trace.window import (
    Imputed,
    Ints,
    PartialSteps,
    SkippedStep,
    Trace,
    Window,
    WorkerPlace,
)

# A worker that lacks more than this share of a step's operations (and more than one) is absent.
MAX_LONE_SHARE = 0.05
# Present workers that a stage needs, as a share of its dp ranks: with fewer, collecting has failed.
MIN_PRESENT_SHARE = 0.5
# So many peers give a median as good as all of them.
MAX_PEERS = 64
# An operation that ended less than this after another's start had ended before it.
_AT_ONCE_S = 50e-6


def impute(window: Window) -> Window:
    """The window with its incomplete steps completed, as far as possible.

    Steps that cannot be completed stay among `skipped`. Without incomplete steps it is the same
    object.
    """
    partial = window.partial
    if partial is None:
        return window
    window = replace(window, partial=None)
    is_alone = window.job.parallelism.dp_size == 1
    trace = _joined([window.trace, partial.trace]) if is_alone else partial.trace
    if not trace.num_ops:
        return window
    try:
        table = tabulate(trace, window.job.parallelism, window.job.op_types)
    except InvalidTrace:
        return window  # duplicates, or senseless numbers: nothing to compare with
    losses = _losses(table, is_alone=is_alone)
    candidates = {each.step: each for each in partial.steps}
    lacking = tuple(
        candidates[step]
        for step in table.steps[losses.can_be_imputed].tolist()
        if step in candidates
    )
    if not lacking:
        return window
    return _completed(window, partial, lacking, _Peers(trace, table, losses))


@dataclass(frozen=True, slots=True)
class _Losses:
    """What each worker lost in each step.

    Shapes: `usual` [steps, pp, types, seq ids] operations of the stage; `is_present` [steps, dp,
    pp]; `lost` [steps, dp, pp, types, seq ids] those that present workers lack; `can_be_imputed`
    [steps].
    """

    usual: Flags
    is_present: Flags
    lost: Flags
    can_be_imputed: Flags

    @property
    def is_whole(self) -> Flags:
        """[steps, dp, pp], workers that have lost nothing."""
        return np.asarray(self.is_present & ~self.lost.any(axis=(3, 4)))

    @property
    def all_lost(self) -> Flags:
        """[steps, dp, pp, types, seq ids], also those of absent workers."""
        absent = ~self.is_present[..., None, None] & self.usual[:, None]
        return np.asarray(self.lost | absent)


def _losses(table: RecordTable, *, is_alone: bool) -> _Losses:
    recorded = table.recorded
    is_present: Flags = np.asarray(recorded.any(axis=(3, 4)))
    # Twice: what is usual shows only without those that lack much.
    for _ in range(2):
        there = recorded & is_present[..., None, None]
        if is_alone:
            usual = usual_operations(there, *table.kinds)[:, 0]
        else:
            count = np.count_nonzero(there, axis=1)
            usual = (2 * count >= is_present.sum(axis=1)[..., None, None]) & (count > 0)
        lost = usual[:, None] & ~recorded
        num_usual = np.count_nonzero(usual, axis=(2, 3))[:, None]
        num_lost = np.count_nonzero(lost, axis=(3, 4))
        is_present &= num_lost <= np.maximum(1, MAX_LONE_SHARE * num_usual)
    lost &= is_present[..., None, None]
    num_present = is_present.sum(axis=1)
    dp_size = recorded.shape[1]
    enough = (num_present >= max(1.0, MIN_PRESENT_SHARE * dp_size)).all(axis=1)
    # A number that was left out, by all who could say what it was.
    unknown = numbering_gaps(recorded) & ~usual[:, None] & is_present[..., None, None]
    gaps = unknown.any(axis=(1, 2, 3, 4))
    # An absent worker needs a donor that has lost nothing.
    has_whole = np.asarray((is_present & ~lost.any(axis=(3, 4))).any(axis=1))
    has_donor = np.asarray(has_whole | is_present.all(axis=1)).all(axis=1)
    can_be_imputed = enough & has_donor & ~gaps
    if is_alone:  # what no other step shows cannot be counted
        can_be_imputed &= lost.any(axis=(1, 2, 3, 4))
    return _Losses(usual, is_present, lost, can_be_imputed)


class _Peers:
    """Rows of the recorded operations by cell: (step, dp rank, stage, type, seq id) positions."""

    def __init__(self, trace: Trace, table: RecordTable, losses: _Losses) -> None:
        self.trace, self.table, self.losses = trace, table, losses
        self._row: NDArray[Any] = np.full(table.recorded.shape, -1, np.int64)
        type_at = np.full(NUM_CODES, -1, np.int64)
        type_at[table.codes] = np.arange(table.codes.size)
        step = np.searchsorted(table.steps, trace.step)
        cell = (step, trace.dp_rank, trace.stage, type_at[trace.optype], trace.seq_id)
        self._row[cell] = np.arange(trace.num_ops)
        self._row[~table.recorded] = -1  # annotations

    def rows(self, cells: Ints) -> Ints:
        """[cells, peers], the rows of a cell's peers, -1 where one has none."""
        step, _, stage, type_at, seq_id = cells.T
        dp_size = self._row.shape[1]
        if dp_size == 1:
            steps = _evenly_spaced(self._row.shape[0])
            return np.asarray(self._row[steps[None], 0, *_columns(stage, type_at, seq_id)])
        peers = _evenly_spaced(dp_size)
        found = self._row[step[:, None], peers[None], *_columns(stage, type_at, seq_id)]
        found = np.where(self.losses.is_present[step[:, None], peers, stage[:, None]], found, -1)
        if (none := (found < 0).all(axis=1)).any() and peers.size < dp_size:
            at = np.flatnonzero(none)
            every = self._row[step[at], :, stage[at], type_at[at], seq_id[at]]
            first = every.max(axis=1)
            found[at, 0] = first
        return np.asarray(found)

    def worker_rows(self, step: int, dp_rank: int, stage: int) -> Ints:
        """[types, seq ids], rows of one worker in one step, -1 where it has none."""
        return np.asarray(self._row[step, dp_rank, stage])

    def donor(self, step: int, stage: int) -> int:
        """The most typical dp rank of the stage that has lost nothing in this step."""
        ranks = np.flatnonzero(self.losses.is_whole[step, :, stage])
        ranks = ranks[_evenly_spaced(ranks.size)]
        rows = self._row[step, ranks, stage].reshape(ranks.size, -1)
        took_s = np.where(rows >= 0, self.trace.duration_s[rows], 0.0)
        kinds = self.table.types(lambda spec: spec.kind is OpKind.COMPUTE)
        is_compute = np.repeat(kinds, self._row.shape[-1])
        both_s = np.stack([took_s[:, is_compute].sum(axis=1), took_s[:, ~is_compute].sum(axis=1)])
        usual_s = np.median(both_s, axis=1, keepdims=True)
        away = np.abs(both_s - usual_s) / np.maximum(usual_s, 1e-9)
        return int(ranks[away.sum(axis=0).argmin()])


def _columns(*indices: Ints) -> tuple[Ints, ...]:
    return tuple(index[:, None] for index in indices)


def _evenly_spaced(size: int) -> Ints:
    """Positions of at most MAX_PEERS of so many."""
    return np.unique(np.linspace(0, size - 1, min(size, MAX_PEERS)).astype(np.int64))


def _completed(
    window: Window, partial: PartialSteps, lacking: tuple[SkippedStep, ...], peers: _Peers
) -> Window:
    table, losses = peers.table, peers.losses
    chosen = np.isin(table.steps, [each.step for each in lacking])
    cells = np.argwhere(losses.all_lost & chosen[:, None, None, None, None])
    absent = _absent(table, losses, chosen)
    ranks = _ranks(window, partial.trace)
    kept = np.isin(partial.trace.step, table.steps[chosen])
    if absent:
        kept &= ~_of_workers(partial.trace, absent)
    new, clock_of = _new_rows(window, cells, peers, ranks)
    trace = _joined([window.trace, partial.trace.select(kept), new])
    steps = tuple(sorted({*window.steps, *(each.step for each in lacking)}))
    is_absent = ~losses.is_present[cells[:, 0], cells[:, 1], cells[:, 2]]
    lone = cells[~is_absent].copy()
    lone[:, 0], lone[:, 3] = table.steps[lone[:, 0]], table.codes[lone[:, 3]]
    num_ops = np.bincount(cells[:, 0], minlength=table.steps.size)
    imputed = Imputed(
        absent=absent,
        lone=lone,
        ops_by_step=dict(zip(table.steps.tolist(), num_ops.tolist(), strict=True)),
        ranks={worker: int(ranks[worker]) for worker in absent},
        lacking=lacking,
        clock_of=clock_of,
    )
    origin_ns = None
    if window.origin_ns is not None and partial.origin_ns is not None:
        by_step = dict(zip(window.steps, window.origin_ns, strict=True))
        at = zip((each.step for each in partial.steps), partial.origin_ns, strict=True)
        by_step.update(at)
        origin_ns = tuple(by_step[step] for step in steps)
    left = {each.step for each in lacking}
    collectives = partial.collectives or window.collectives
    return replace(
        window,
        steps=steps,
        trace=trace,
        skipped=tuple(each for each in window.skipped if each.step not in left),
        origin_ns=origin_ns,
        collectives=collectives and collectives.select(np.isin(collectives.step, steps)),
        imputed=imputed,
    )


def _absent(
    table: RecordTable, losses: _Losses, chosen: Flags
) -> dict[WorkerPlace, tuple[int, ...]]:
    """The steps, ascending, that each absent worker is absent from."""
    found: dict[WorkerPlace, list[int]] = {}
    for at, dp_rank, stage in np.argwhere(~losses.is_present & chosen[:, None, None]).tolist():
        found.setdefault((dp_rank, stage), []).append(int(table.steps[at]))
    return {worker: tuple(steps) for worker, steps in sorted(found.items())}


def _of_workers(trace: Trace, absent: Mapping[WorkerPlace, tuple[int, ...]]) -> Flags:
    """[rows], those that absent workers recorded before they were lost."""
    found = np.zeros(trace.num_ops, np.bool_)
    for (dp_rank, stage), steps in absent.items():
        mine = np.flatnonzero((trace.dp_rank == dp_rank) & (trace.stage == stage))
        found[mine[np.isin(trace.step[mine], steps)]] = True
    return found


def _ranks(window: Window, partial: Trace) -> NDArray[np.int64]:
    """[dp, pp], global rank of each worker: as recorded, as the recorder knows, else the usual."""
    found = window.job.parallelism.usual_ranks()
    for rank, worker in window.places.items():
        found[worker] = rank
    for trace in (window.trace, partial):
        found[trace.dp_rank, trace.stage] = trace.rank
    return found


def _new_rows(
    window: Window, cells: Ints, peers: _Peers, ranks: NDArray[np.int64]
) -> tuple[Trace, dict[WorkerPlace, WorkerPlace]]:
    """The imputed operations, and whose clock those of each absent worker are by."""
    table, trace = peers.table, peers.trace
    rows = peers.rows(cells)
    position = np.arange(len(cells))
    took_s = np.nanmedian(np.where(rows >= 0, trace.duration_s[rows], np.nan), axis=1)
    source = rows[position, (rows >= 0).argmax(axis=1)]
    start_s = np.empty(len(cells))
    computes = table.types(lambda spec: spec.kind is OpKind.COMPUTE)[cells[:, 3]]
    donors = _Donors(window, peers)
    for first, end in _runs(cells[:, :3]):
        step, dp_rank, stage = cells[first, :3].tolist()
        mine = slice(first, end)
        if peers.losses.is_present[step, dp_rank, stage]:
            for at in range(first, end):
                start_s[at], room_s = _place_of_lone(peers, cells[at], int(source[at]))
                took_s[at] = min(took_s[at], room_s)
            continue
        donor = donors.of(step, (dp_rank, stage))
        donated = peers.worker_rows(step, donor, stage)
        source[mine] = donated[cells[mine, 3], cells[mine, 4]]
        began_s = trace.start_s[source[mine]]
        took = np.where(computes[mine], took_s[mine], trace.duration_s[source[mine]])
        # Within the donor's step, so that the step's length stays as recorded.
        all_s = donated[donated >= 0]
        ended_s = float((trace.start_s[all_s] + trace.duration_s[all_s]).max())
        took_s[mine] = np.clip(took, 0.0, np.maximum(ended_s - began_s, 0.0))
        start_s[mine] = began_s + donors.shift_s((dp_rank, stage), (donor, stage))
    imputed = Trace(
        step=table.steps[cells[:, 0]],
        dp_rank=cells[:, 1],
        stage=cells[:, 2],
        rank=ranks[cells[:, 1], cells[:, 2]],
        optype=table.codes[cells[:, 3]].astype(np.int16),
        seq_id=cells[:, 4],
        mc=trace.mc[source],
        mb_id=trace.mb_id[source],
        start_s=start_s,
        duration_s=took_s,
    )
    return imputed, donors.clock_of


class _Donors:
    """The peers at whose times the operations of absent workers are, mostly one for each.

    `clock_of` names, for each absent worker whose own clock is not known, the donor by whose clock
    its operations are.
    """

    def __init__(self, window: Window, peers: _Peers) -> None:
        self._window, self._peers = window, peers
        self._donor: dict[WorkerPlace, int] = {}
        self._shift_s: dict[tuple[WorkerPlace, WorkerPlace], float | None] = {}
        self.clock_of: dict[WorkerPlace, WorkerPlace] = {}

    def of(self, step: int, worker: WorkerPlace) -> int:
        """The donor's dp rank, in the step at this position."""
        stage, known = worker[1], self._donor.get(worker)
        if known is not None and self._peers.losses.is_whole[step, known, stage]:
            return known
        self._donor[worker] = self._peers.donor(step, stage)
        return self._donor[worker]

    def shift_s(self, worker: WorkerPlace, donor: WorkerPlace) -> float:
        """How far the worker's clock is ahead of its donor's; 0 where the clock is the donor's."""
        if (worker, donor) not in self._shift_s:
            self._shift_s[worker, donor] = _clock_shift_s(self._window, worker, donor)
        shift_s = self._shift_s[worker, donor]
        if shift_s is None:
            self.clock_of[worker] = donor
            return 0.0
        return shift_s


def _runs(keys: Ints) -> list[tuple[int, int]]:
    """First and end of each run of equal rows."""
    if not len(keys):
        return []
    new = np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1
    return list(pairwise([0, *new.tolist(), len(keys)]))


def _place_of_lone(peers: _Peers, cell: Ints, source: int) -> tuple[float, float]:
    """Start of a lone operation, and the seconds until the worker's next one; infinite without.

    The order is that on the worker of row `source`: it starts as long after the end of the
    operation before it as there.
    """
    step, dp_rank, stage, _, _ = cell.tolist()
    trace = peers.trace
    mine = peers.worker_rows(step, dp_rank, stage)
    source_step = int(np.searchsorted(peers.table.steps, trace.step[source]))
    theirs = peers.worker_rows(source_step, int(trace.dp_rank[source]), stage)
    both = (mine >= 0) & (theirs >= 0)
    mine, theirs = mine[both], theirs[both]
    if not mine.size:
        return float(trace.start_s[source]), np.inf
    begins_s = trace.start_s[theirs]
    later_s = trace.start_s[source] - (begins_s + trace.duration_s[theirs])
    if (before := later_s >= -_AT_ONCE_S).any():
        last = int(np.where(before, later_s, np.inf).argmin())
        start_s = trace.start_s[mine[last]] + trace.duration_s[mine[last]] + later_s[last]
    else:  # before the first, the one that starts next
        first = int(begins_s.argmin())
        start_s = trace.start_s[mine[first]] + trace.start_s[source] - begins_s[first]
    ended_s = trace.start_s[source] + trace.duration_s[source]
    follow = mine[begins_s >= ended_s - _AT_ONCE_S]
    room_s = float(trace.start_s[follow].min() - start_s) if follow.size else np.inf
    return float(start_s), max(room_s, 0.0)


def _clock_shift_s(window: Window, worker: WorkerPlace, donor: WorkerPlace) -> float | None:
    """How far the worker's clock is ahead of its donor's, by the ends of operations of both.

    None where the window has no complete step. Collectives end at one moment, so those are
    compared where there are any.
    """
    trace = window.trace
    if not trace.num_ops or worker == donor:
        return None
    ends, keys = [], []
    for dp_rank, stage in (worker, donor):
        rows = np.flatnonzero((trace.dp_rank == dp_rank) & (trace.stage == stage))
        kinds = window.job.op_types.flags(lambda spec: spec.kind is OpKind.COLLECTIVE)
        if kinds[trace.optype[rows]].any():
            rows = rows[kinds[trace.optype[rows]]]
        order = np.lexsort((trace.seq_id[rows], trace.optype[rows], trace.step[rows]))
        rows = rows[order]
        ends.append(trace.start_s[rows] + trace.duration_s[rows])
        keys.append(np.stack([trace.step[rows], trace.optype[rows], trace.seq_id[rows]]))
    if keys[0].shape != keys[1].shape or not keys[0].size or (keys[0] != keys[1]).any():
        return None
    return float(np.median(ends[0] - ends[1]))


def _joined(traces: list[Trace]) -> Trace:
    """The rows of all; an optional column is -1 where a part lacks it."""
    parts = [trace for trace in traces if trace.num_ops]
    if len(parts) == 1:
        return parts[0]

    def column(part: Trace, name: str) -> NDArray[Any]:
        values: NDArray[Any] | None = getattr(part, name)
        return np.full(part.num_ops, -1, np.int64) if values is None else values

    names = {name for part in parts for name in part.columns()}
    return Trace(**{name: np.concatenate([column(part, name) for part in parts]) for name in names})
