"""An external sort of the operations of an import: added in any order, read back by step."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.ops import NUM_CODES
from app.trace.readers.disk_rows import (
    RANK_BITS,
    ROWS_HELD,
    Rows,
    ScratchFile,
    SortedBlock,
    merged_groups,
)
from app.trace.readers.importing import WorkerPlace
from app.trace.window import OPTIONAL, Ints

# Limits of the wire format (docs/wire-format.md), since an import can be pushed.
DAY_NS = 86_400 * 10**9
LIMITS: dict[str, tuple[int, int]] = {
    "rank": (0, 2**31 - 1),
    "step": (0, 2**53),
    "optype": (0, NUM_CODES - 1),
    "mc": (-1, 2**15 - 1),
    "mb_id": (-1, 2**31 - 1),
    "seq_id": (-1, 2**31 - 1),
    "start_ns": (0, 2**63 - 1 - DAY_NS),
    "duration_ns": (0, DAY_NS),
    **dict.fromkeys(OPTIONAL, (-1, 2**53)),
    "gmc": (-1, 2**31 - 1),
}
_FLUSH_ROWS = 1 << 16
_ADDED_ROWS = 1 << 14
_NO_START = np.iinfo(np.int64).max
_STEPS_KEPT = 1 << 18  # number of steps of several blocks, with repetitions, before a merge

PlacedRank = tuple[int, int, int, str | None]  # dp rank, stage, peer, host


class OpSpool:
    """Operations, added in any order and read back as whole (step, rank) groups.

    After `finish`, `steps` are ascending, and `first_starts` has the earliest start in every step.
    `places` are of the ranks that are kept. `num_peers` other ranks do the same work; their
    `num_peer_ops` operations are not in `num_ops`.

    `at` gives the reader's position (file and place), with which error messages begin. `more` are
    the names of additional columns.

    Raises (all methods):
        InvalidTrace: a value is out of range; the message begins with its position.
        InvalidRequest: the disk is full.
    """

    def __init__(
        self,
        at: Callable[[], str],
        *,
        more: tuple[str, ...] = (),
        folder: Path | None = None,
        block_rows: int = _FLUSH_ROWS,
    ) -> None:
        self._block_rows = block_rows
        self.at = at
        self.more = more
        self.checks_times = True  # False if times are the bits of floats
        self.num_by_type = np.zeros(NUM_CODES, np.int64)
        self.num_without_mb = np.zeros(NUM_CODES, np.int64)
        self.highest_chunk = -1
        self._dtype = np.dtype(
            [("rank", "i4"), ("optype", "i2"), ("mc", "i2"), ("mb_id", "i4"), ("seq_id", "i4")]
            + [(name, "i8") for name in ("step", "start_ns", "duration_ns", *more)]
        )
        self._file = ScratchFile(folder)
        self._places: dict[int, PlacedRank] = {}
        self._num_by_rank: Counter[int] = Counter()
        self._added: list[tuple[int, ...]] = []
        self._pieces: list[Rows] = []
        self._num_pending = 0
        self._blocks: list[tuple[int, int, int, int]] = []  # first row, rows, first step, rank
        self._num_rows = 0
        self._steps: list[tuple[Ints, Ints]] = []  # steps, their first starts
        self.steps = self.first_starts = np.empty(0, np.int64)
        self.places: dict[int, WorkerPlace] = {}
        self.num_ops = self.num_peers = self.num_peer_ops = 0

    def place(
        self, rank: int, dp_rank: int, stage: int, *, peer: int = 0, host: str | None = None
    ) -> None:
        """Declare a rank; of the ranks with the same place, the one with the lowest `peer` is kept.

        `peer` numbers the tensor- or sequence-parallel ranks, which do the same work.
        """
        for name, value, most in (
            ("rank", rank, LIMITS["rank"][1]),
            ("dp_rank", dp_rank, 2**31 - 1),
            ("stage", stage, 2**15 - 1),
        ):
            if not 0 <= value <= most:
                raise InvalidTrace(f"{self.at()}: {name} is {str(value)[:40]}: want 0 to {most:,}")
        before = self._places.get(rank)
        if before is None or (before[:3] == (dp_rank, stage, peer) and before[3] is None):
            self._places[rank] = (dp_rank, stage, peer, host)
        elif before[:3] != (dp_rank, stage, peer):
            raise InvalidTrace(
                f"{self.at()}: rank {rank} is dp_rank {dp_rank}, stage {stage} here and dp_rank "
                f"{before[0]}, stage {before[1]} before: give the files of one run"
            )
        elif host is not None and before[3] != host:
            raise InvalidTrace(
                f"{self.at()}: rank {rank} is on host {host[:80]!r} here and on "
                f"{str(before[3])[:80]!r} before: give the files of one run"
            )

    def add(
        self,
        rank: int,
        step: int,
        optype: int,
        start_ns: int,
        duration_ns: int,
        mc: int = -1,
        mb_id: int = -1,
        seq_id: int = -1,
        *more: int,
    ) -> None:
        """One operation; `more` in the order of the additional columns.

        Without a `seq_id` the operations of a step are numbered by their starts.
        """
        if not (
            0 <= rank <= 2147483647
            and 0 <= step <= 9007199254740992
            and 0 <= start_ns <= 9_223_285_636_854_775_807
            and 0 <= duration_ns <= DAY_NS
            and -1 <= mc <= 32767
            and -1 <= mb_id <= 2147483647
            and -1 <= seq_id <= 2147483647
        ):
            names = ("rank", "step", "start_ns", "duration_ns", "mc", "mb_id", "seq_id")
            values = (rank, step, start_ns, duration_ns, mc, mb_id, seq_id)
            self._refuse(dict(zip(names, values, strict=True)))
        self._added.append((rank, optype, mc, mb_id, seq_id, step, start_ns, duration_ns, *more))
        if len(self._added) >= _ADDED_ROWS:
            self._take_added()

    def add_rows(self, rank: NDArray[Any], step: NDArray[Any], **columns: NDArray[Any]) -> None:
        """Operations as columns; omitted columns are -1."""
        rows = np.full(rank.size, -1, self._dtype)
        for name, values in {"rank": rank, "step": step, **columns}.items():
            if values.size and (self.checks_times or name not in ("start_ns", "duration_ns")):
                self._refuse({name: int(values.min())})
                self._refuse({name: int(values.max())})
            rows[name] = values
        self._take_added()
        self._take(rows)

    def finish(self) -> Self:
        """Prepare the spool for reading, after the last operation."""
        self._take_added()
        self._flush()
        self._gather_steps()
        if self._steps:
            self.steps, self.first_starts = self._steps[0]
        self.places = _kept_ranks(
            {rank: place for rank, place in self._places.items() if rank in self._num_by_rank}
        )
        others = [times for rank, times in self._num_by_rank.items() if rank not in self.places]
        self.num_peers, self.num_peer_ops = len(others), sum(others)
        self.num_ops = self._num_by_rank.total() - self.num_peer_ops
        return self

    def groups(self, rows_held: int = ROWS_HELD) -> Iterator[tuple[int, int, Rows]]:
        """Rank, step and rows, by step and rank ascending."""
        blocks = [
            SortedBlock(self._file, self._dtype, first, rows) for first, rows, *_ in self._blocks
        ]
        firsts = [
            int(np.searchsorted(self.steps, step)) << RANK_BITS | rank
            for *_, step, rank in self._blocks
        ]
        for rows in merged_groups(blocks, firsts, self.steps, rows_held):
            rank = int(rows["rank"][0])
            if rank in self.places:
                yield rank, int(rows["step"][0]), rows

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()

    def _refuse(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            lowest, highest = LIMITS[name]
            if not lowest <= value <= highest:
                raise InvalidTrace(
                    f"{self.at()}: {name} is {str(value)[:40]}: want {lowest} to {highest:,}"
                )

    def _take_added(self) -> None:
        if self._added:
            rows, self._added = np.array(self._added, self._dtype), []
            self._take(rows)

    def _take(self, rows: Rows) -> None:
        self._pieces.append(rows)
        self._num_pending += rows.size
        if self._num_pending >= self._block_rows:
            self._flush()

    def _flush(self) -> None:
        """Write pending rows as one sorted block."""
        if not self._num_pending:
            return
        rows = np.concatenate(self._pieces)
        self._pieces, self._num_pending = [], 0
        order = np.lexsort((rows["rank"], rows["step"]))  # stable
        if (order[1:] < order[:-1]).any():
            rows = rows[order]
        self._count(rows)
        self._blocks.append((self._num_rows, rows.size, int(rows["step"][0]), int(rows["rank"][0])))
        self._num_rows += rows.size
        self._file.append(rows.tobytes())

    def _count(self, rows: Rows) -> None:
        optype, has_none = rows["optype"], rows["mb_id"] < 0
        self.num_by_type += np.bincount(optype, minlength=NUM_CODES)
        self.num_without_mb += np.bincount(optype[has_none], minlength=NUM_CODES)
        self.highest_chunk = max(self.highest_chunk, int(rows["mc"].max()))
        ranks, times = np.unique(rows["rank"], return_counts=True)
        for rank, count in zip(ranks.tolist(), times.tolist(), strict=True):
            self._num_by_rank[rank] += count
        begins = np.flatnonzero(np.diff(rows["step"], prepend=-1))
        firsts = np.minimum.reduceat(rows["start_ns"], begins)
        self._steps.append((rows["step"][begins], firsts))
        if sum(steps.size for steps, _ in self._steps[1:]) > _STEPS_KEPT:
            self._gather_steps()

    def _gather_steps(self) -> None:
        if len(self._steps) < 2:
            return
        steps = np.concatenate([steps for steps, _ in self._steps])
        firsts = np.concatenate([firsts for _, firsts in self._steps])
        distinct, position = np.unique(steps, return_inverse=True)
        first_starts = np.full(distinct.size, _NO_START)
        np.minimum.at(first_starts, position, firsts)
        self._steps = [(distinct, first_starts)]


def _kept_ranks(places: Mapping[int, PlacedRank]) -> dict[int, WorkerPlace]:
    """The kept ranks, one per place."""
    lowest: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (dp_rank, stage, peer, _) in places.items():
        best = lowest.get((dp_rank, stage))
        if best is not None and best[0] == peer:
            raise InvalidTrace(
                f"ranks {best[1]} and {rank} are both dp_rank {dp_rank}, stage {stage}: give the "
                "sizes of all parallel axes, and each rank's file once"
            )
        if best is None or peer < best[0]:
            lowest[dp_rank, stage] = (peer, rank)
    kept = sorted(rank for _, rank in lowest.values())
    return {rank: WorkerPlace(places[rank][0], places[rank][1], places[rank][3]) for rank in kept}
