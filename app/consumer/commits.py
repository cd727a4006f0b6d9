"""Turns of one shard's jobs, done and committed: what goes wrong with one job stops no other."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

import structlog
from structlog.contextvars import bound_contextvars

from app.consumer import turn as turns_
from app.consumer.books import Books
from app.consumer.runs import JobTrouble, Runs
from app.consumer.turn import Turn
from app.consumer.workplace import Workplace
from app.errors import LeaseLost, Unavailable
from app.store import shards
from app.store.engine import with_longer_limit

log = structlog.get_logger()


class Lease(NamedTuple):
    """Which shard is whose, and since which claim."""

    shard: int
    owner: str
    fence: int


class Commits:
    """Commits the turns of a shard's jobs, and forgets what memory has of those that failed."""

    def __init__(self, workplace: Workplace, lease: Lease, runs: Runs, books: Books) -> None:
        self._work = workplace
        self._lease = lease
        self._runs = runs
        self._books = books

    def turn(self, deeds: Mapping[str, Callable[[Turn], None]]) -> list[str]:
        """Do and commit these; returns the jobs whose deed failed, of which nothing was done.

        Where the store is to blame, the entries stay in the queue and come again later.
        """
        turns: dict[str, Turn] = {}
        failed = []
        for job_id, deed in deeds.items():
            turns[job_id] = Turn(job_id)
            try:
                done = self.tried(job_id, partial(deed, turns[job_id]))
            except JobTrouble:
                self._leave(turns.pop(job_id), job_id)
                continue
            if not done:
                failed.append(job_id)
                del turns[job_id]
        self._commit_all(turns)
        return failed

    def _commit_all(self, turns: Mapping[str, Turn]) -> None:
        try:
            self.commit(turns.values())
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:
            log.warning("turn committed job by job", shard=self._lease.shard, reason=repr(error))
            for job_id, turn in turns.items():
                if not self.tried(job_id, partial(self.commit, [turn])):
                    self._leave(turn, job_id)

    def _leave(self, turn: Turn, job_id: str) -> None:
        """The store is to blame: the entries stay in the queue, and nobody else waits for them."""
        self._runs.stuck |= dict.fromkeys(turn.entry_ids, job_id)

    def tried(self, job_id: str, deed: Callable[[], object]) -> bool:
        """Whether the deed was done; if not, the job is forgotten, to be loaded again."""
        try:
            with bound_contextvars(shard=self._lease.shard, job=job_id):
                deed()
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:
            if not isinstance(error, JobTrouble):
                log.exception("job failed", shard=self._lease.shard, job=job_id)
            self._books.forget(job_id)
            self._runs.forget(job_id)
            if isinstance(error, JobTrouble):
                raise
            return False
        return True

    def commit(self, turns: Collection[Turn]) -> None:
        """Write down what these changed, in one transaction; then tell the queue, then the pages.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        work = self._work
        turns = [turn for turn in turns if not turn.is_empty]
        if not turns:
            return
        entry_ids = [entry_id for turn in turns for entry_id in turn.entry_ids]
        with work.store.write() as conn:
            with_longer_limit(conn)
            shards.check(conn, *self._lease)
            messages = turns_.save(conn, work, turns)
            if entry_ids:
                shards.note_committed(conn, self._lease.shard, entry_ids)
        if entry_ids:
            work.queue.done(self._lease.shard, entry_ids)
            for entry_id in entry_ids:
                self._runs.stuck.pop(entry_id, None)
        for message in messages:
            work.announcer.announce(message)
        for turn in turns:
            self._runs.tell(turn.silences)
            for each in turn.runs.values():
                each.run.assembler.roll.has_new_hosts &= not each.has_state
                each.run.assembler.roll.has_new_drops &= not each.has_state
                if each.is_closed:
                    self._runs.close(each.run.key)
            for letter in turn.letters:  # its run's counts have grown in the store alone
                self._runs.forget(letter.job_id)
