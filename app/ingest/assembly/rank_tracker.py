"""Ranks of a run: batches seen, in any order, and the step up to which each has declared."""

from collections.abc import Iterable, Mapping
from itertools import chain, count
from operator import attrgetter
from typing import Literal

import msgspec
import numpy as np

from app.ingest.batch import OpBatch
from app.trace.job import Parallelism, Placement

MAX_AHEAD = 1024  # batches seen after a gap, and numbers given up, that are remembered
MAX_GAP = 1 << 20  # numbers that a worker can have skipped; beyond, it is no number of its own
MAX_DIGESTS = 8  # of the latest batches: a worker repeats what it has just sent
NO_STEP = -1

BatchVerdict = Literal["new", "duplicate", "conflict", "stranger"]


class RankCursor(msgspec.Struct):
    """One rank's batches: all below `next_seq` have been seen, and those in `ahead`.

    `ahead` maps a number after the gap to the highest step that its batch declares. `holes` are
    numbers below `next_seq` that were given up and may still turn up; `num_lost` counts all that
    did not. `watermark` is the highest step declared by the batches without gap: no lower one can
    turn up after it. `digests` maps the latest numbers to their batches' content. `dropped` is how
    many operations its recorder has dropped, None where it has not said. A rank that `is_alone`
    records only inside its groups, so that no step waits for it.
    """

    rank: int
    worker: int
    next_seq: int = 0
    watermark: int = NO_STEP
    num_lost: int = 0
    ahead: dict[int, int] = {}  # msgspec copies these three
    holes: list[int] = []  # ascending
    digests: dict[int, int] = {}
    dropped: int | None = None
    is_alone: bool = False

    def add(self, batch_seq: int, highest_step: int, digest: int) -> BatchVerdict:
        """Add a batch; returns whether it is new.

        A number far beyond all others is a stranger's: the batch does not count.
        """
        if batch_seq > self.next_seq + MAX_GAP:
            return "stranger"
        if batch_seq in self.holes:
            self.holes.remove(batch_seq)
            self.num_lost -= 1
            self.watermark = max(self.watermark, highest_step)
        elif batch_seq < self.next_seq or batch_seq in self.ahead:
            known = self.digests.get(batch_seq, digest)
            return "conflict" if known != digest else "duplicate"
        elif batch_seq == self.next_seq and not self.ahead:  # as nearly always
            self.next_seq += 1
            self.watermark = max(self.watermark, highest_step)
        else:
            self.ahead[batch_seq] = highest_step
            self._close_up()
            if len(self.ahead) > MAX_AHEAD:
                self._skip_gap()
        self.digests[batch_seq] = digest
        if len(self.digests) > MAX_DIGESTS:
            del self.digests[next(iter(self.digests))]
        return "new"

    def give_up(self) -> None:
        """Stop waiting for missing batches."""
        while self.ahead:
            self._skip_gap()

    def give_up_to(self, step: int) -> None:
        """Stop waiting for missing batches where a later one declares this step or a higher."""
        while self.ahead and self.watermark < step <= max(self.ahead.values()):
            self._skip_gap()

    def _close_up(self) -> None:
        while self.next_seq in self.ahead:
            self.watermark = max(self.watermark, self.ahead.pop(self.next_seq))
            self.next_seq += 1

    def _skip_gap(self) -> None:
        after = min(self.ahead)
        self.num_lost += after - self.next_seq
        self.holes += range(max(self.next_seq, after - MAX_AHEAD), after)
        del self.holes[:-MAX_AHEAD]
        self.next_seq = after
        self._close_up()


_FIRST_CAPACITY = 64
# Ranks that record one worker's work, if the job names no more; made-up ones fill no memory.
MAX_PEER_RANKS = 8
_NEVER_WAITED_STEP = 2**62  # a step that none comes up to


class RankTracker:
    """Ranks seen and their watermarks. Workers are numbered dp_rank * pp_size + stage.

    `has_new_hosts` is set when a worker has sent another host or placement than before,
    `has_new_drops` when a recorder has dropped more; the caller resets them after saving
    `hosts()` and `placements()`, or `drops()`. `cursors` are stored, too.
    """

    def __init__(
        self,
        parallelism: Parallelism,
        cursors: Iterable[RankCursor] = (),
        hosts: Mapping[tuple[int, int], str] | None = None,
        placements: Mapping[tuple[int, int], Placement] | None = None,
    ) -> None:
        self._parallelism = parallelism
        self._hosts = dict(hosts or {})
        self._placements = dict(placements or {})
        self.has_new_hosts = False
        self.has_new_drops = False
        peers = max(MAX_PEER_RANKS, parallelism.tp_size * parallelism.dsp_size)
        self._most_ranks = peers * parallelism.num_workers
        self.cursors: list[RankCursor] = []
        self._at: dict[int, int] = {}  # where each rank's cursor is
        self._watermarks = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        self._rank: dict[int, int] = {}  # the lowest one of each worker
        for cursor in cursors:
            self._add_cursor(cursor)

    @property
    def num_lost(self) -> int:
        """Batches that were given up and have not turned up."""
        return sum(cursor.num_lost for cursor in self.cursors)

    def worker(self, batch: OpBatch) -> int | None:
        """Number of the worker that sent the batch; None if the job has no such worker."""
        sizes = self._parallelism
        if batch.dp_rank >= sizes.dp_size or batch.stage >= sizes.pp_size:
            return None
        return batch.dp_rank * sizes.pp_size + batch.stage

    def add(self, batch: OpBatch, worker: int, digest: int) -> BatchVerdict:
        """Add a batch; returns whether it is new. Of a rank that has moved, it is a stranger's."""
        at = self._at.get(batch.rank)
        if at is None and (batch.batch_seq > MAX_GAP or len(self.cursors) >= self._most_ranks):
            return "stranger"
        if at is not None and self.cursors[at].worker != worker:
            return "stranger"  # it claims another's place: that worker's record stays as it is
        if at is None:
            at = self._add_cursor(RankCursor(batch.rank, worker, is_alone=batch.is_alone))
        cursor = self.cursors[at]
        highest_step = NO_STEP
        if not batch.is_alone:
            self._note_worker(batch, worker, cursor)
            highest_step = batch.steps_done[-1][0] if batch.steps_done else NO_STEP
        verdict = cursor.add(batch.batch_seq, highest_step, digest)
        self._watermarks[at] = _watermark(cursor)
        if verdict == "new" and batch.dropped is not None:
            # Batches may arrive out of order, and the number never goes down.
            dropped = max(batch.dropped, cursor.dropped or 0)
            self.has_new_drops |= dropped != cursor.dropped
            cursor.dropped = dropped
        return verdict

    def _note_worker(self, batch: OpBatch, worker: int, cursor: RankCursor) -> None:
        """Remember host and placement of a worker that records its operations."""
        if cursor.is_alone:  # it begins to record its operations, too
            cursor.is_alone = False
            self._rank[worker] = min(cursor.rank, self._rank.get(worker, cursor.rank))
        place = batch.dp_rank, batch.stage
        if batch.host and self._hosts.get(place) != batch.host:
            self._hosts[place] = batch.host
            self.has_new_hosts = True
        if batch.placement and self._placements.get(place) != batch.placement:
            self._placements[place] = batch.placement
            self.has_new_hosts = True

    def watermark(self) -> int:
        """The step up to which every worker has declared its steps."""
        if self.has_unseen_ranks:
            return NO_STEP
        return int(self._watermarks[: len(self.cursors)].min())

    def give_up_to(self, step: int) -> None:
        """Stop waiting for batches missing before a declaration of this step or a later one."""
        for at, cursor in enumerate(self.cursors):
            if cursor.ahead:
                cursor.give_up_to(step)
                self._watermarks[at] = _watermark(cursor)

    def give_up(self) -> None:
        """Stop waiting for missing batches: the run is over."""
        for at, cursor in enumerate(self.cursors):
            cursor.give_up()
            self._watermarks[at] = _watermark(cursor)

    def ranks(self, workers: Iterable[int]) -> tuple[int, ...]:
        """Global ranks of these workers, ascending; for an unseen worker an unused rank."""
        wanted, known = list(workers), self._rank
        if not known.keys() >= set(wanted):
            known = known | self._unseen_ranks()
        return tuple(sorted(known[worker] for worker in wanted))

    @property
    def has_unseen_ranks(self) -> bool:
        """Whether some workers have sent nothing yet."""
        return len(self._rank) < self._parallelism.num_workers

    def unseen_ranks(self) -> tuple[int, ...]:
        """Ranks, ascending, of the workers that have sent nothing yet."""
        return tuple(sorted(self._unseen_ranks().values()))

    def workers(self, ranks: Iterable[int]) -> dict[int, int]:
        """Workers of these ranks, without ranks of no worker.

        Such ranks were assumed for an unseen worker until it sent its own.
        """
        wanted = set(ranks)
        if not wanted:  # as nearly always, and a job may have very many
            return {}
        known = {rank: self.cursors[at].worker for rank, at in self._at.items()}
        if not wanted <= known.keys():
            known |= {rank: worker for worker, rank in self._unseen_ranks().items()}
        return {rank: known[rank] for rank in sorted(wanted) if rank in known}

    def workers_by_rank(self, ranks: Iterable[int]) -> dict[int, tuple[int, int]]:
        """(dp_rank, stage) by rank, as `workers` has them."""
        pp_size = self._parallelism.pp_size
        return {rank: divmod(worker, pp_size) for rank, worker in self.workers(ranks).items()}

    def hosts(self) -> dict[tuple[int, int], str]:
        """Host by (dp_rank, stage), as far as known."""
        return dict(self._hosts)

    def placements(self) -> dict[tuple[int, int], Placement]:
        """Rack and switch by (dp_rank, stage), as far as known."""
        return dict(self._placements)

    def drops(self) -> list[tuple[int, int, int, int]]:
        """Rank, dp rank, stage and number of operations dropped, by recorder."""
        pp_size = self._parallelism.pp_size
        return [
            (cursor.rank, *divmod(cursor.worker, pp_size), cursor.dropped)
            for cursor in sorted(self.cursors, key=attrgetter("rank"))
            if cursor.dropped is not None
        ]

    def _unseen_ranks(self) -> dict[int, int]:
        """Rank of each unseen worker: its usual one, or the next unused one.

        The worker is certain; its rank is not, if a launcher orders ranks in its own way.
        """
        sizes = self._parallelism
        if not self.has_unseen_ranks:
            return {}
        usual = [
            sizes.usual_rank(*divmod(worker, sizes.pp_size)) for worker in range(sizes.num_workers)
        ]
        unseen = [worker for worker in range(sizes.num_workers) if worker not in self._rank]
        ranks = {worker: usual[worker] for worker in unseen if usual[worker] not in self._at}
        others = [worker for worker in unseen if worker not in ranks]
        taken = {*self._at, *ranks.values()}
        # Peers of a worker may have taken so many of the usual ones that only higher ones are left.
        free = (
            rank
            for rank in chain(sorted(usual), count(max(*usual, *taken) + 1))
            if rank not in taken
        )
        return ranks | dict(zip(others, free, strict=False))

    def _add_cursor(self, cursor: RankCursor) -> int:
        at = len(self.cursors)
        if at == self._watermarks.size:
            self._watermarks = np.resize(self._watermarks, 2 * at)
        self._at[cursor.rank] = at
        self._watermarks[at] = _watermark(cursor)
        self.cursors.append(cursor)
        if not cursor.is_alone:
            self._rank[cursor.worker] = min(cursor.rank, self._rank.get(cursor.worker, cursor.rank))
        return at


def _watermark(cursor: RankCursor) -> int:
    return _NEVER_WAITED_STEP if cursor.is_alone else cursor.watermark
