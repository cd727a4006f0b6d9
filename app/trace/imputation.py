"""Imputes lost operations of skipped steps, so that these steps can be analysed as well.

A single lost operation gets the median duration of the same operation on the other dp ranks of its
stage; in a job with one dp rank, of the same operation in other steps. A worker that lost more than
a small share of its operations is absent from the step: all of its operations are imputed, at the
times of a typical peer, its donor. A step stays skipped if too few workers of a stage are present.
A dp rank that runs fewer micro-batches by design (app.trace.completeness) lacks nothing. `impute`
looks at the rows only, so it treats live and recorded data alike.
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
    beyond_design,
    numbering_gaps,
    tabulate,
    usual_operations,
)
from app.trace.ops import NUM_CODES, OpKind
from app.trace.window import Imputed, Ints, PartialSteps, SkippedStep, Trace, Window, WorkerPlace

# A worker that lost more than this share of a step's operations (and more than one) is absent.
MAX_LONE_SHARE = 0.05
# The share of its dp ranks that a stage needs as present workers: below it, collection has failed.
MIN_PRESENT_SHARE = 0.5
# Number of peers from which medians are computed: more would hardly change them.
MAX_PEERS = 64
# Complete steps that are looked at for the micro-batches that a dp rank usually runs.
MAX_EARLIER_STEPS = 4
# Seconds by which an operation may end after the start of another one and still count as before it.
_AT_ONCE_S = 50e-6


def impute(window: Window) -> Window:
    """The window with its incomplete steps completed, as far as possible.

    Steps that cannot be completed stay in `skipped`. A window without incomplete steps is returned
    as it is.
    """
    partial = window.partial
    if partial is None:
        return window
    senders = _senders(partial)
    partial = replace(partial, steps=tuple(senders.get(skip.step, skip) for skip in partial.steps))
    skipped = tuple(senders.get(skip.step, skip) for skip in window.skipped)
    window = replace(window, skipped=skipped, partial=None)
    is_alone = window.job.parallelism.dp_size == 1
    trace = _joined([window.trace, partial.trace]) if is_alone else partial.trace
    if not trace.num_ops:
        return window
    try:
        table = tabulate(trace, window.job.parallelism, window.job.op_types)
        losses = _losses(table, is_alone=is_alone)
        if not is_alone and window.steps and losses.leaves_out(table):
            # Earlier steps tell whether they lack operations by design.
            earlier = window.trace.of_steps(window.steps[-MAX_EARLIER_STEPS:])
            trace = _joined([earlier, partial.trace])
            table = tabulate(trace, window.job.parallelism, window.job.op_types)
            losses = _losses(table, is_alone=False)
    except InvalidTrace:
        return window  # duplicates, or ids out of range: peers cannot be compared
    can_be_imputed = set(table.steps[losses.can_be_imputed].tolist())
    lacking = tuple(skip for skip in partial.steps if skip.step in can_be_imputed)
    if not lacking:
        return window
    return _completed(window, partial, lacking, _Peers(trace, table, losses))


@dataclass(frozen=True, slots=True)
class _Losses:
    """The operations that each worker lost in each step.

    Shapes: `expected` [steps, dp, pp, types, seq ids] operations of the stage that the worker
    records by design; `is_present` [steps, dp, pp]; `lost` as `expected`, operations that present
    workers lost; `is_whole` [steps, dp, pp], workers that have all usual operations;
    `can_be_imputed` [steps].
    """

    expected: Flags
    is_present: Flags
    lost: Flags
    is_whole: Flags
    can_be_imputed: Flags

    @property
    def all_lost(self) -> Flags:
        """[steps, dp, pp, types, seq ids], with all operations of absent workers."""
        return np.asarray(self.lost | (~self.is_present[..., None, None] & self.expected))

    def leaves_out(self, table: RecordTable) -> bool:
        """Whether some absent worker recorded operations."""
        return bool((table.recorded.any(axis=(3, 4)) & ~self.is_present).any())


def _losses(table: RecordTable, *, is_alone: bool) -> _Losses:
    recorded = table.recorded
    is_present: Flags = np.asarray(recorded.any(axis=(3, 4)))
    # Two passes: the usual operations of the second one ignore the workers that the first one
    # marked as absent.
    for _ in range(2):
        of_present = recorded & is_present[..., None, None]
        if is_alone:
            usual = usual_operations(table, of_present)[:, 0]
        else:
            count = np.count_nonzero(of_present, axis=1)
            usual = (2 * count >= is_present.sum(axis=1)[..., None, None]) & (count > 0)
        expected = np.broadcast_to(usual[:, None], recorded.shape)
        if not is_alone:
            expected = expected & ~beyond_design(table, usual)
        lost = expected & ~recorded
        num_expected = np.count_nonzero(expected, axis=(3, 4))
        num_lost = np.count_nonzero(lost, axis=(3, 4))
        is_present &= num_lost <= np.maximum(1, MAX_LONE_SHARE * num_expected)
    lost &= is_present[..., None, None]
    num_present = is_present.sum(axis=1)
    dp_size = recorded.shape[1]
    enough = (num_present >= max(1.0, MIN_PRESENT_SHARE * dp_size)).all(axis=1)
    # Gaps in the numbering of which no peer shows the operation.
    unknown = numbering_gaps(recorded) & ~usual[:, None] & is_present[..., None, None]
    has_unknown = unknown.any(axis=(1, 2, 3, 4))
    # An absent worker needs a donor that lost nothing.
    is_whole = is_present & ~(usual[:, None] & ~recorded).any(axis=(3, 4))
    has_donor = np.asarray(is_whole.any(axis=1) | is_present.all(axis=1)).all(axis=1)
    can_be_imputed = enough & has_donor & ~has_unknown
    if is_alone:  # steps whose losses no other step shows cannot be completed
        can_be_imputed &= lost.any(axis=(1, 2, 3, 4))
    return _Losses(expected, is_present, lost, is_whole, can_be_imputed)


def _senders(partial: PartialSteps) -> dict[int, SkippedStep]:
    """By step, the skipped steps with those of their missing ranks that sent a part."""
    missing = {skip.step: skip for skip in partial.steps if skip.missing}
    ranks = sorted({rank for skip in missing.values() for rank in skip.missing})
    rows = np.flatnonzero(np.isin(partial.trace.rank, ranks))
    pairs = np.stack([partial.trace.at("step", rows), partial.trace.at("rank", rows)], axis=1)
    sent: dict[int, list[int]] = {}
    for step, rank in np.unique(pairs, axis=0).tolist():
        if step in missing and missing[step].is_missing(rank):
            sent.setdefault(step, []).append(rank)
    return {step: replace(missing[step], sent=tuple(ranks)) for step, ranks in sent.items()}


class _Peers:
    """Rows of the recorded operations by their (step, dp rank, stage, type, seq id) positions."""

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
        """[cells, peers], rows of the same operation on the worker's peers, -1 for none."""
        step, _, stage, type_at, seq_id = cells.T[..., None]
        dp_size = self._row.shape[1]
        if dp_size == 1:
            steps = _evenly_spaced(self._row.shape[0])
            return np.asarray(self._row[steps, 0, stage, type_at, seq_id])
        peers = _evenly_spaced(dp_size)
        rows = self._row[step, peers, stage, type_at, seq_id]
        rows = np.where(self.losses.is_present[step, peers, stage], rows, -1)
        if (none := (rows < 0).all(axis=1)).any() and peers.size < dp_size:
            step, _, stage, type_at, seq_id = cells[none].T
            rows[none, 0] = self._row[step, :, stage, type_at, seq_id].max(axis=1)
        return np.asarray(rows)

    def worker_rows(self, step: int, dp_rank: int, stage: int) -> Ints:
        """[types, seq ids], rows of one worker in one step, -1 for none."""
        return np.asarray(self._row[step, dp_rank, stage])

    def donor(self, step: int, stage: int) -> int:
        """The dp rank nearest to the medians of its stage, of those that lost nothing in a step."""
        ranks = np.flatnonzero(self.losses.is_whole[step, :, stage])
        ranks = ranks[_evenly_spaced(ranks.size)]
        rows = self._row[step, ranks, stage].reshape(ranks.size, -1)
        took_s = np.where(rows >= 0, self.trace.duration_s[rows], 0.0)
        compute_types = self.table.types(lambda spec: spec.kind is OpKind.COMPUTE)
        is_compute = np.repeat(compute_types, self._row.shape[-1])
        both_s = np.stack([took_s[:, is_compute].sum(axis=1), took_s[:, ~is_compute].sum(axis=1)])
        usual_s = np.median(both_s, axis=1, keepdims=True)
        deviation = np.abs(both_s - usual_s) / np.maximum(usual_s, 1e-9)
        return int(ranks[deviation.sum(axis=0).argmin()])


def _evenly_spaced(size: int) -> Ints:
    """At most MAX_PEERS of the positions below a size."""
    return np.unique(np.linspace(0, size - 1, min(size, MAX_PEERS)).astype(np.int64))


def _completed(
    window: Window, partial: PartialSteps, lacking: tuple[SkippedStep, ...], peers: _Peers
) -> Window:
    table, losses = peers.table, peers.losses
    numbers = {skip.step for skip in lacking}
    chosen = np.isin(table.steps, list(numbers))
    cells = np.argwhere(losses.all_lost & chosen[:, None, None, None, None])
    absent = _absent(table, losses, chosen)
    ranks = _ranks(window, partial.trace)
    kept = np.isin(partial.trace.step, table.steps[chosen])
    if absent:
        kept &= ~_is_of_absent(partial.trace, absent)
    new, clock_of = _new_rows(window, cells, peers, ranks)
    trace = _joined([window.trace, partial.trace.select(kept), new])
    steps = tuple(sorted({*window.steps, *numbers}))
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
        by_step |= zip((skip.step for skip in partial.steps), partial.origin_ns, strict=True)
        origin_ns = tuple(by_step[step] for step in steps)
    collectives = partial.collectives or window.collectives
    return replace(
        window,
        steps=steps,
        trace=trace,
        skipped=tuple(skip for skip in window.skipped if skip.step not in numbers),
        origin_ns=origin_ns,
        collectives=collectives and collectives.select(np.isin(collectives.step, steps)),
        imputed=imputed,
    )


def _absent(
    table: RecordTable, losses: _Losses, chosen: Flags
) -> dict[WorkerPlace, tuple[int, ...]]:
    """By absent worker, the steps that it is absent from, ascending."""
    absent: dict[WorkerPlace, tuple[int, ...]] = {}
    for at, dp_rank, stage in np.argwhere(~losses.is_present & chosen[:, None, None]).tolist():
        absent[dp_rank, stage] = (*absent.get((dp_rank, stage), ()), int(table.steps[at]))
    return dict(sorted(absent.items()))


def _is_of_absent(trace: Trace, absent: Mapping[WorkerPlace, tuple[int, ...]]) -> Flags:
    """[rows], whether the row's worker counts as absent from the row's step."""
    is_of_absent = np.zeros(trace.num_ops, np.bool_)
    for (dp_rank, stage), steps in absent.items():
        rows = np.flatnonzero((trace.dp_rank == dp_rank) & (trace.stage == stage))
        is_of_absent[rows[np.isin(trace.step[rows], steps)]] = True
    return is_of_absent


def _ranks(window: Window, partial: Trace) -> NDArray[np.int64]:
    """[dp, pp], global ranks: as in the rows, else as in `window.places`, else the usual ones."""
    ranks = window.job.parallelism.usual_ranks()
    for rank, worker in window.places.items():
        ranks[worker] = rank
    for trace in (window.trace, partial):
        ranks[trace.dp_rank, trace.stage] = trace.rank
    return ranks


def _new_rows(
    window: Window, cells: Ints, peers: _Peers, ranks: NDArray[np.int64]
) -> tuple[Trace, dict[WorkerPlace, WorkerPlace]]:
    """The imputed operations; and `Imputed.clock_of`."""
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
        stretch = slice(first, end)
        if peers.losses.is_present[step, dp_rank, stage]:
            for row in range(first, end):
                start_s[row], room_s = _place_of_lone(peers, cells[row], int(source[row]))
                took_s[row] = min(took_s[row], room_s)
            continue
        donor = donors.donor(step, (dp_rank, stage))
        donated = peers.worker_rows(step, donor, stage)
        source[stretch] = donated[cells[stretch, 3], cells[stretch, 4]]
        began_s = trace.start_s[source[stretch]]
        took = np.where(computes[stretch], took_s[stretch], trace.duration_s[source[stretch]])
        # Within the donor's step, so that the step's length stays as recorded.
        all_donated = donated[donated >= 0]
        ended_s = float((trace.start_s[all_donated] + trace.duration_s[all_donated]).max())
        took_s[stretch] = np.clip(took, 0.0, np.maximum(ended_s - began_s, 0.0))
        start_s[stretch] = began_s + donors.shift_s((dp_rank, stage), (donor, stage))
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
    """The donors of absent workers; a worker keeps its donor as long as that one lost nothing.

    `clock_of` maps absent workers with an unknown clock to the donor whose clock they get.
    """

    def __init__(self, window: Window, peers: _Peers) -> None:
        self._window, self._peers = window, peers
        self._donor: dict[WorkerPlace, int] = {}
        self._shift_s: dict[tuple[WorkerPlace, WorkerPlace], float | None] = {}
        self.clock_of: dict[WorkerPlace, WorkerPlace] = {}

    def donor(self, step: int, worker: WorkerPlace) -> int:
        """The dp rank of the worker's donor in the step at a position."""
        stage, known = worker[1], self._donor.get(worker)
        if known is not None and self._peers.losses.is_whole[step, known, stage]:
            return known
        self._donor[worker] = self._peers.donor(step, stage)
        return self._donor[worker]

    def shift_s(self, worker: WorkerPlace, donor: WorkerPlace) -> float:
        """Seconds by which the worker's clock is ahead of its donor's; 0 for the donor's clock."""
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
    """Start of a single lost operation, and the seconds until the worker's next one, or infinity.

    It takes the place that the operation in row `source` has on its worker: it starts as long after
    the end of the operation before it as there.
    """
    step, dp_rank, stage, _, _ = cell.tolist()
    trace = peers.trace
    own = peers.worker_rows(step, dp_rank, stage)
    source_step = int(np.searchsorted(peers.table.steps, trace.step[source]))
    others = peers.worker_rows(source_step, int(trace.dp_rank[source]), stage)
    both = (own >= 0) & (others >= 0)
    own, others = own[both], others[both]
    if not own.size:
        return float(trace.start_s[source]), np.inf
    begins_s = trace.start_s[others]
    later_s = trace.start_s[source] - (begins_s + trace.duration_s[others])
    if (before := later_s >= -_AT_ONCE_S).any():
        last = int(np.where(before, later_s, np.inf).argmin())
        start_s = trace.start_s[own[last]] + trace.duration_s[own[last]] + later_s[last]
    else:  # it is the first operation: relative to the one that starts next
        first = int(begins_s.argmin())
        start_s = trace.start_s[own[first]] + trace.start_s[source] - begins_s[first]
    ended_s = trace.start_s[source] + trace.duration_s[source]
    follow = own[begins_s >= ended_s - _AT_ONCE_S]
    room_s = float(trace.start_s[follow].min() - start_s) if follow.size else np.inf
    return float(start_s), max(room_s, 0.0)


def _clock_shift_s(window: Window, worker: WorkerPlace, donor: WorkerPlace) -> float | None:
    """Seconds by which the worker's clock is ahead of its donor's; None without a complete step.

    The median difference between the ends of the same operations on both: of collectives if there
    are any, since these end at the same moment.
    """
    trace = window.trace
    if not trace.num_ops or worker == donor:
        return None
    ends, keys = [], []
    is_collective = window.job.op_types.flags(lambda spec: spec.kind is OpKind.COLLECTIVE)
    for dp_rank, stage in (worker, donor):
        rows = np.flatnonzero((trace.dp_rank == dp_rank) & (trace.stage == stage))
        if (collective := is_collective[trace.optype[rows]]).any():
            rows = rows[collective]
        rows = rows[np.lexsort((trace.seq_id[rows], trace.optype[rows], trace.step[rows]))]
        ends.append(trace.start_s[rows] + trace.duration_s[rows])
        keys.append(np.stack([trace.step[rows], trace.optype[rows], trace.seq_id[rows]]))
    if keys[0].shape != keys[1].shape or not keys[0].size or (keys[0] != keys[1]).any():
        return None
    return float(np.median(ends[0] - ends[1]))


def _joined(traces: list[Trace]) -> Trace:
    """The rows of all traces; an optional column is -1 in the rows of traces that lack it."""
    parts = [trace for trace in traces if trace.num_ops]
    if len(parts) == 1:
        return parts[0]

    def column(part: Trace, name: str) -> NDArray[Any]:
        values: NDArray[Any] | None = getattr(part, name)
        return np.full(part.num_ops, -1, np.int64) if values is None else values

    names = {name for part in parts for name in part.columns()}
    return Trace(**{name: np.concatenate([column(part, name) for part in parts]) for name in names})
