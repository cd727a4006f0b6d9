"""Duration of each micro-batch of a window relative to the mean, and its length.

A long micro-batch takes longer on all stages, in both directions. Its factor is the mean of these
without the longest and the shortest, so a pause does not count.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.advice.change import ChangedDurations
from app.advice.sequences.balance import CostModel, fit_costs
from app.diagnosis.evidence.sequence_lengths import PAIR_STAGE
from app.diagnosis.features import Computations, Features
from app.engine.what_if import Replayer
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Ints, Trace

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SentLengths:
    """Lengths that clients sent, [dp, micro-batches, steps]; `tokens` may lack."""

    tokens: Ints | None
    seq_len_sq: Ints


@dataclass(frozen=True, slots=True, eq=False)
class MicrobatchWork:
    """Work of the micro-batches of steps with one structure.

    `factor` [dp, micro-batches, steps] is 1.0 in the mean. `microbatches` [micro-batches] are their
    numbers, `rows` [ops] the template's computations that belong to one, `position` [ops] which.
    `mean_s` is the mean of their forward and backward on one stage, seconds.
    """

    factor: Floats
    microbatches: Ints
    rows: Ints
    position: Ints
    mean_s: float

    def rescale(self, durations: ChangedDurations, factor: Floats) -> None:
        """Give every place a micro-batch of another factor, [dp, micro-batches, steps].

        A worker whose durations another change has replaced by a peer's computes the peer's
        micro-batches: its mean then stands for what it takes.
        """
        ratio = np.divide(factor, self.factor, out=np.ones(factor.shape), where=self.factor > 0)
        now_s = durations.of(self.rows)
        if not np.array_equal(now_s, durations.group.durations.recorded_s[self.rows]):
            self._use_means_of_copies(durations.group, now_s)
        durations.set(self.rows, now_s * self._by_lane(ratio)[self.position])

    def sent_lengths(self, trace: Trace, group: Replayer) -> SentLengths | None:
        """Lengths of all micro-batches of a group, as the first stage sends them.

        None where those of one are not known.
        """
        squares = self._sent(trace, trace.seq_len_sq, group)
        if squares is None:
            return None
        return SentLengths(self._sent(trace, trace.tokens, group), squares)

    def _sent(self, trace: Trace, column: Ints | None, group: Replayer) -> Ints | None:
        """The column by dp rank, micro-batch and step; None unless all are known."""
        if column is None:
            return None
        is_forward = trace.optype == OP_CODES["forward-compute"]
        rows = np.flatnonzero(is_forward & (trace.stage == PAIR_STAGE))
        rows = rows[column[rows] >= 0]
        rows = rows[np.isin(trace.step[rows], group.steps)]
        number = np.where(trace.mb_id[rows] >= 0, trace.mb_id[rows], trace.seq_id[rows])
        at = np.searchsorted(self.microbatches, number)
        at = np.minimum(at, self.microbatches.size - 1)
        inside = self.microbatches[at] == number
        rows, at = rows[inside], at[inside]
        sent = np.full(self.factor.shape, -1, np.int64)
        sent[trace.dp_rank[rows], at, np.searchsorted(group.steps, trace.step[rows])] = column[rows]
        return sent if (sent >= 0).all() else None

    def fitted_costs(self, sent: SentLengths) -> CostModel | None:
        """Seconds of a micro-batch's forward and backward on one stage, fitted to its lengths."""
        tokens = None if sent.tokens is None else sent.tokens.ravel()
        return fit_costs(tokens, sent.seq_len_sq.ravel(), self.factor.ravel() * self.mean_s)

    def _by_lane(self, values: Floats) -> Floats:
        """[micro-batches, lanes] of [dp, micro-batches, steps]."""
        return values.transpose(1, 0, 2).reshape(values.shape[1], -1)

    def _use_means_of_copies(self, group: Replayer, now_s: Floats) -> None:
        """In place: durations that do not follow the factor become mean x factor."""
        template = group.template
        columns = (template.stage, template.optype, template.mc)
        kinds = np.column_stack([column[self.rows] for column in columns])
        factor = self._by_lane(self.factor)
        for kind in np.unique(kinds, axis=0):
            rows = np.flatnonzero((kinds == kind).all(axis=1))
            shape = rows.size, group.dp_size, -1
            taken_s = now_s[rows].reshape(shape)
            work = factor[self.position[rows]].reshape(shape)
            usual_s = np.divide(taken_s, work, out=taken_s.copy(), where=work > 0)
            is_copy = _spread(usual_s) > _spread(taken_s)
            mean_s = taken_s.mean(axis=(0, 2), keepdims=True)
            follows_s = np.where(is_copy[None, :, None], work * mean_s, taken_s)
            now_s[rows] = follows_s.reshape(rows.size, -1)


def microbatch_work(
    group: Replayer, slow_workers: Collection[tuple[int, int]] = ()
) -> MicrobatchWork | None:
    """The work of each micro-batch; None where some stage or direction lacks one of them.

    Dp ranks draw other lengths than each other, so that one computes longer than another in the
    mean, too. Of `slow_workers` (dp rank, stage) this is their speed, and no work that could be
    moved.
    """
    features = Features(group)
    sides = [side for side in (features.forward, features.backward) if side is not None]
    if not sides:
        return None
    microbatches = np.unique(sides[0].microbatch[sides[0].shared])
    duration_s = []
    for side in sides:
        for chunk in np.unique(side.chunk[side.shared]):
            of_chunk = _of_chunk(side, chunk, microbatches)
            if of_chunk is None:
                return None
            duration_s.append(of_chunk)
    if not duration_s:
        return None
    every_s = np.concatenate(duration_s, axis=1)
    rows, position = _rows(sides, microbatches)
    factor = _common_factor(every_s, _is_slow(slow_workers, group, every_s.shape[1]))
    mean_s = float(every_s.mean()) * len(duration_s)
    return MicrobatchWork(factor, microbatches, rows, position, mean_s)


def _spread(duration_s: Floats) -> Floats:
    """[dp], standard deviation over the mean of [rows, dp, steps]."""
    mean_s = duration_s.mean(axis=(0, 2))
    return np.asarray(duration_s.std(axis=(0, 2)) / np.where(mean_s > 0, mean_s, 1.0))


def _of_chunk(side: Computations, chunk: int, microbatches: Ints) -> Floats | None:
    """[dp, pp, micro-batches, steps], seconds; None where a micro-batch has no such chunk."""
    items = side.shared[side.chunk[side.shared] == chunk]
    if not np.array_equal(side.microbatch[items], microbatches):
        return None
    return side.duration_s[:, :, np.searchsorted(side.shared, items)]


def _rows(sides: Sequence[Computations], microbatches: Ints) -> tuple[Ints, Ints]:
    """Template rows of the micro-batches' computations, and the position of each one's."""
    rows, positions = [], []
    for side in sides:
        of_side = side.rows[:, side.shared]
        position = np.searchsorted(microbatches, side.microbatch[side.shared])
        positions.append(np.broadcast_to(position[:, None], of_side.shape)[of_side >= 0])
        rows.append(of_side[of_side >= 0])
    return np.concatenate(rows), np.concatenate(positions)


def _is_slow(slow_workers: Collection[tuple[int, int]], group: Replayer, num_places: int) -> Flags:
    """[dp, places], places being the stages, again by direction and chunk."""
    is_slow = np.zeros((group.dp_size, group.pp_size), np.bool_)
    for worker in slow_workers:
        is_slow[worker] = True
    return np.tile(is_slow, num_places // group.pp_size)


def _common_factor(duration_s: Floats, is_slow: Flags) -> Floats:
    """[dp, micro-batches, steps] of [dp, places, micro-batches, steps] seconds."""
    mean_s = duration_s.mean(axis=(2, 3), keepdims=True)
    relative = np.divide(duration_s, mean_s, out=np.ones(duration_s.shape), where=mean_s > 0)
    size = relative.shape[1]
    if size > 2:
        factor = np.partition(relative, (1, size - 2), axis=1)[:, 1 : size - 1].mean(axis=1)
    else:
        factor = relative.mean(axis=1)
    usual_s = np.median(mean_s, axis=0, keepdims=True)
    of_place = np.divide(mean_s, usual_s, out=np.ones(mean_s.shape), where=usual_s > 0)
    of_rank = np.ones(factor[:, :1, :1].shape)
    for rank in np.flatnonzero(~is_slow.all(axis=1)):
        of_rank[rank] = np.median(of_place[rank, ~is_slow[rank]])
    factor *= of_rank
    return np.asarray(factor / factor.mean())
