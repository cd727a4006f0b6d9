"""Who of a run's workers has been heard of, and how far each has come."""

from collections.abc import Iterable

from app.ingest.batch import OpBatch
from app.ingest.cursor import NO_STEP, Cursor
from app.trace.job import Parallelism


class Roll:
    """The cursors of all ranks heard of. Workers are numbered dp_rank * pp_size + stage."""

    def __init__(self, parallelism: Parallelism, cursors: Iterable[Cursor] = ()) -> None:
        self._parallelism = parallelism
        self._cursors = {cursor.rank: cursor for cursor in cursors}
        self._rank: dict[int, int] = {}
        for cursor in self._cursors.values():
            self._know(cursor)
        self._slowest: tuple[Cursor, int] | None = None

    @property
    def cursors(self) -> list[Cursor]:
        """All of them, for storing."""
        return list(self._cursors.values())

    def worker(self, batch: OpBatch) -> int | None:
        """Number of the worker that sent the batch; None if the job has no such worker."""
        sizes = self._parallelism
        if batch.dp_rank >= sizes.dp_size or batch.stage >= sizes.pp_size:
            return None
        return batch.dp_rank * sizes.pp_size + batch.stage

    def see(self, batch: OpBatch, worker: int) -> bool:
        """Whether the batch is a new one; it is none from now on."""
        cursor = self._cursors.get(batch.rank)
        if cursor is None:
            cursor = self._cursors[batch.rank] = Cursor(batch.rank, worker)
            self._know(cursor)
            self._slowest = None
        cursor.host = batch.host or cursor.host
        highest_step = batch.steps_done[-1][0] if batch.steps_done else NO_STEP
        return cursor.see(batch.batch_seq, highest_step)

    def _know(self, cursor: Cursor) -> None:
        self._rank[cursor.worker] = min(cursor.rank, self._rank.get(cursor.worker, cursor.rank))

    def watermark(self) -> int:
        """The step up to which every worker's word is final."""
        if len(self._rank) < self._parallelism.num_workers:
            return NO_STEP
        # Watermarks only rise: while the lowest one stays, it stays the lowest.
        if self._slowest is None or self._slowest[0].watermark != self._slowest[1]:
            slowest = min(self._cursors.values(), key=lambda cursor: cursor.watermark)
            self._slowest = (slowest, slowest.watermark)
        return self._slowest[1]

    def give_up_to(self, step: int) -> None:
        """Wait no longer for batches missing before a declaration of this step or a later one."""
        for cursor in self._cursors.values():
            cursor.give_up_to(step)

    def ranks(self, workers: Iterable[int]) -> tuple[int, ...]:
        """Their global ranks, ascending; the usual one for a worker never heard of."""
        sizes = self._parallelism
        return tuple(
            sorted(
                self._rank.get(worker, sizes.usual_rank(*divmod(worker, sizes.pp_size)))
                for worker in workers
            )
        )

    def hosts(self) -> dict[tuple[int, int], str]:
        """Host by (dp_rank, stage), as far as the workers have said."""
        pp_size = self._parallelism.pp_size
        return {
            divmod(cursor.worker, pp_size): cursor.host
            for cursor in self._cursors.values()
            if cursor.host
        }
