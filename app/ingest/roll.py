"""Who of a run's workers has been heard of, and how far each has come."""

from collections.abc import Iterable, Mapping
from itertools import chain, count

import numpy as np

from app.ingest.batch import OpBatch
from app.ingest.cursor import MAX_GAP, NO_STEP, Cursor, Verdict
from app.trace.job import Parallelism
from app.trace.placement import Placement

_FIRST_ROOM = 64
# Ranks that record one worker's work, if the job names no more; made-up ones fill no memory.
MAX_PEERS = 8
_NEVER_WAITED_FOR = 2**62  # a step that none comes up to


class Roll:
    """The cursors of all ranks heard of. Workers are numbered dp_rank * pp_size + stage.

    `has_new_hosts` is set when a worker has said another host or placement than was known,
    `has_new_drops` when a recorder has dropped more; whoever has saved `hosts()` and
    `placements()`, or `drops()`, takes it back.
    """

    def __init__(
        self,
        parallelism: Parallelism,
        cursors: Iterable[Cursor] = (),
        hosts: Mapping[tuple[int, int], str] | None = None,
        placements: Mapping[tuple[int, int], Placement] | None = None,
    ) -> None:
        self._parallelism = parallelism
        self._hosts = {
            dp_rank * parallelism.pp_size + stage: host
            for (dp_rank, stage), host in (hosts or {}).items()
        }
        self._placements = {
            dp_rank * parallelism.pp_size + stage: placement
            for (dp_rank, stage), placement in (placements or {}).items()
        }
        self.has_new_hosts = False
        self.has_new_drops = False
        peers = max(MAX_PEERS, parallelism.tp_size * parallelism.dsp_size)
        self._most_ranks = peers * parallelism.num_workers
        self._cursors: list[Cursor] = []
        self._at: dict[int, int] = {}  # where each rank's cursor is
        self._watermarks = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._rank: dict[int, int] = {}  # the lowest one of each worker
        for cursor in cursors:
            self._know(cursor)

    @property
    def cursors(self) -> list[Cursor]:
        """All of them, for storing."""
        return self._cursors

    @property
    def num_lost(self) -> int:
        """Batches that were given up and have not turned up."""
        return sum(cursor.num_lost for cursor in self._cursors)

    def worker(self, batch: OpBatch) -> int | None:
        """Number of the worker that sent the batch; None if the job has no such worker."""
        sizes = self._parallelism
        if batch.dp_rank >= sizes.dp_size or batch.stage >= sizes.pp_size:
            return None
        return batch.dp_rank * sizes.pp_size + batch.stage

    def see(self, batch: OpBatch, worker: int, digest: int) -> Verdict:
        """Whether the batch is a new one; it is none from now on."""
        at = self._at.get(batch.rank)
        if at is None and (batch.batch_seq > MAX_GAP or len(self._cursors) >= self._most_ranks):
            return "stranger"
        if at is None:
            at = self._know(Cursor(batch.rank, worker, is_alone=batch.is_alone))
        cursor = self._cursors[at]
        if batch.is_alone:
            return self._seen(at, cursor.see(batch.batch_seq, NO_STEP, digest), batch.dropped)
        if cursor.is_alone:  # it begins to record its operations, too
            cursor.is_alone = False
            self._rank[worker] = min(cursor.rank, self._rank.get(worker, cursor.rank))
        if batch.host and self._hosts.get(worker) != batch.host:
            self._hosts[worker] = batch.host
            self.has_new_hosts = True
        if batch.placement and self._placements.get(worker) != batch.placement:
            self._placements[worker] = batch.placement
            self.has_new_hosts = True
        highest_step = batch.steps_done[-1][0] if batch.steps_done else NO_STEP
        return self._seen(at, cursor.see(batch.batch_seq, highest_step, digest), batch.dropped)

    def _seen(self, at: int, verdict: Verdict, dropped: int | None) -> Verdict:
        cursor = self._cursors[at]
        self._watermarks[at] = _watermark(cursor)
        if dropped is not None and verdict == "new":
            self._note_dropped(cursor, dropped)
        return verdict

    def watermark(self) -> int:
        """The step up to which every worker's word is final."""
        if self.has_unheard:
            return NO_STEP
        return int(self._watermarks[: len(self._cursors)].min())

    def give_up_to(self, step: int) -> None:
        """Wait no longer for batches missing before a declaration of this step or a later one."""
        for at, cursor in enumerate(self._cursors):
            if cursor.ahead:
                cursor.give_up_to(step)
                self._watermarks[at] = _watermark(cursor)

    def give_up(self) -> None:
        """Wait for no missing batch any more: the run is over."""
        for at, cursor in enumerate(self._cursors):
            cursor.give_up()
            self._watermarks[at] = _watermark(cursor)

    def ranks(self, workers: Iterable[int]) -> tuple[int, ...]:
        """Their global ranks, ascending; of a worker never heard of one that nobody else has."""
        asked = list(workers)
        known = self._rank
        if any(worker not in known for worker in asked):
            known = known | self._unheard()
        return tuple(sorted(known[worker] for worker in asked))

    @property
    def has_unheard(self) -> bool:
        """Whether there are workers that have never been heard of."""
        return len(self._rank) < self._parallelism.num_workers

    def unheard(self) -> tuple[int, ...]:
        """Ranks, ascending, of the workers that have never been heard of."""
        return tuple(sorted(self._unheard().values()))

    def workers(self, ranks: Iterable[int]) -> dict[int, int]:
        """Workers by these ranks; without ranks that are nobody's.

        Such are numbers that were taken for a worker's until it came with its own.
        """
        asked = set(ranks)
        if not asked:  # as nearly always, and a job may have very many
            return {}
        known = {rank: self._cursors[at].worker for rank, at in self._at.items()}
        if not asked <= known.keys():
            known |= {rank: worker for worker, rank in self._unheard().items()}
        return {rank: known[rank] for rank in sorted(asked) if rank in known}

    def places(self, ranks: Iterable[int]) -> dict[int, tuple[int, int]]:
        """(dp_rank, stage) by these ranks, as `workers` knows them."""
        pp_size = self._parallelism.pp_size
        return {rank: divmod(worker, pp_size) for rank, worker in self.workers(ranks).items()}

    def hosts(self) -> dict[tuple[int, int], str]:
        """Host by (dp_rank, stage), as far as the workers have said."""
        pp_size = self._parallelism.pp_size
        return {divmod(worker, pp_size): host for worker, host in self._hosts.items()}

    def placements(self) -> dict[tuple[int, int], Placement]:
        """Rack and switch by (dp_rank, stage), as far as the workers have said."""
        pp_size = self._parallelism.pp_size
        return {divmod(worker, pp_size): each for worker, each in self._placements.items()}

    def drops(self) -> list[tuple[int, int, int, int]]:
        """Rank, dp rank, stage and number of operations that each recorder says it dropped."""
        pp_size = self._parallelism.pp_size
        return [
            (cursor.rank, *divmod(cursor.worker, pp_size), cursor.dropped)
            for cursor in sorted(self._cursors, key=lambda each: each.rank)
            if cursor.dropped is not None
        ]

    def _note_dropped(self, cursor: Cursor, dropped: int) -> None:
        # It never goes down: a batch may come late, behind ones that were sent after it.
        if cursor.dropped is None or dropped > cursor.dropped:
            cursor.dropped = dropped
            self.has_new_drops = True

    def _unheard(self) -> dict[int, int]:
        """Rank of each worker never heard of: its usual one, or the next that is nobody's.

        Who is missing is certain; the number is not where a launcher orders ranks in its own way.
        """
        sizes = self._parallelism
        if not self.has_unheard:
            return {}
        usual = [
            sizes.usual_rank(*divmod(worker, sizes.pp_size)) for worker in range(sizes.num_workers)
        ]
        unheard = [worker for worker in range(sizes.num_workers) if worker not in self._rank]
        theirs = {worker: usual[worker] for worker in unheard if usual[worker] not in self._at}
        others = [worker for worker in unheard if worker not in theirs]
        taken = {*self._at, *theirs.values()}
        # Peers of a worker may have taken so many of the usual ones that only higher ones are left.
        free = (
            rank
            for rank in chain(sorted(usual), count(max(*usual, *taken) + 1))
            if rank not in taken
        )
        return theirs | dict(zip(others, free, strict=False))

    def _know(self, cursor: Cursor) -> int:
        at = len(self._cursors)
        if at == self._watermarks.size:
            self._watermarks = np.resize(self._watermarks, 2 * at)
        self._at[cursor.rank] = at
        self._watermarks[at] = _watermark(cursor)
        self._cursors.append(cursor)
        if not cursor.is_alone:
            self._rank[cursor.worker] = min(cursor.rank, self._rank.get(cursor.worker, cursor.rank))
        return at


def _watermark(cursor: Cursor) -> int:
    return _NEVER_WAITED_FOR if cursor.is_alone else cursor.watermark
