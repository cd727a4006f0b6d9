"""Which runs are over, with nothing of theirs left in the queue?"""

from collections.abc import Mapping
from typing import Literal

from app.consumer.workplace import Workplace
from app.ingest.queue import order_of, shard_of
from app.store import watching

RunKey = tuple[str, int]  # job_id, epoch


class Endings:
    """The runs of one shard that have ended or were superseded, and are not closed yet.

    `stuck` are entries that stay in the queue, with their jobs: only those wait for them.
    """

    def __init__(self, workplace: Workplace, shard: int, stuck: Mapping[str, str]) -> None:
        self._stuck = stuck
        self._work = workplace
        self._shard = shard
        self._seen_at: dict[RunKey, str] = {}

    def ready(self) -> list[watching.EndedRun]:
        """Runs to close now.

        What was acknowledged before the end lies in the queue before what came after it was seen.
        """
        over = self._over()
        self._seen_at = {key: self._seen_at[key] for key in map(_key, over) if key in self._seen_at}
        if not over:
            return []
        newest = self._work.queue.newest(self._shard)
        oldest = self._work.queue.oldest(self._shard, besides=self._stuck)
        waiting = set(self._stuck.values())
        ready = []
        for run in (each for each in over if each.job_id not in waiting):
            seen_at = self._seen_at.setdefault(_key(run), newest)
            if order_of(newest) < order_of(seen_at):  # a wiped server begins again
                seen_at = self._seen_at[_key(run)] = newest
            if oldest is None or order_of(oldest) > order_of(seen_at):
                ready.append(run)
        return ready

    def _over(self) -> list[watching.EndedRun]:
        work = self._work
        with work.store.read() as conn:
            over = watching.unfinished(conn)
        return [run for run in over if shard_of(run.job_id, work.num_shards) == self._shard]


def ending_of(run: watching.EndedRun) -> Literal["complete", "superseded"]:
    """What becomes of the windows that are open at the end of the run."""
    return "superseded" if run.is_superseded else "complete"


def _key(run: watching.EndedRun) -> RunKey:
    return run.job_id, run.epoch
