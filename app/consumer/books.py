"""The alerts of one shard's jobs in memory: as the store has them, and one step ahead of it.

After an error a job's are forgotten, and read again: they may know what was never committed.
"""

from collections.abc import Collection
from typing import NamedTuple

from app.alerts.changes import Change
from app.alerts.evaluate import Book, Place
from app.alerts.facts import SilenceFacts, WindowFacts, place_of
from app.consumer.project_rules import ProjectRules
from app.consumer.run import RunKey
from app.consumer.workplace import Workplace
from app.ingest.queue import shard_of
from app.store import alerts, jobs, watching, windows
from app.store.engine import Connection
from app.trace.names import project_of

_PAGE = 500
# So many of the newest windows are looked through for one that has counted.
_LOOKED_THROUGH = 100


class Affected(NamedTuple):
    """Jobs of projects whose rules have changed: those with alerts, or in memory.

    And their runs that have stalled: nobody may be listening to these any more.
    """

    jobs: list[str]
    stalled: list[RunKey]


class Books:
    """What changes is handed out, for the turn to save."""

    def __init__(self, workplace: Workplace, shard: int) -> None:
        self._work = workplace
        self._shard = shard
        self._books: dict[str, Book] = {}
        self._epochs: dict[str, int] = {}  # the run whose labels a book has
        self._over: dict[str, int] = {}  # the newest run that has ended and was closed; 0: none
        self._rules = ProjectRules(workplace.usual_rules)

    def window(self, job_id: str, facts: WindowFacts) -> list[Change]:
        """After a window of the job has closed; in a run that has ended it alerts nobody any more.

        What comes late completes windows of such a run, which is closed again a moment later.
        """
        epoch = facts.place[0]
        book, changes = self._opened(job_id, epoch)
        if epoch <= self._over[job_id]:
            return changes
        return changes + book.window(facts, self._work.unix_time())

    def silence(self, run: RunKey, facts: SilenceFacts) -> list[Change]:
        """Now that so much is known of who is silent in the job's newest run."""
        book, changes = self._opened(*run)
        return changes + book.silence(facts, self._work.unix_time())

    def opened(self, job_id: str) -> list[Change]:
        """Before what came of the job is committed: by that a run that was over is reopened."""
        return self._opened(job_id)[1]

    def ended(self, job_id: str, epoch: int) -> list[Change]:
        """The job has ended, in this run."""
        book, changes = self._opened(job_id)
        self._over[job_id] = max(epoch, self._over[job_id])
        return changes + book.ended(epoch, self._work.unix_time())

    def adopted(self, job_id: str) -> list[Change]:
        """The job is held to its project's rules as they are now."""
        book, changes = self._opened(job_id)
        with self._work.store.read() as conn:
            rules = self._rules.of(conn, project_of(job_id))
        return changes + book.adopt(rules, self._work.unix_time())

    def affected(self) -> Affected:
        """What rules that have changed since this was asked are about."""
        with self._work.store.read() as conn:
            changed = set(self._rules.changed(conn))
            found = {each for each in self._books if project_of(each) in changed}
            for project in changed:
                found.update(self._with_alerts(conn, project))
            stalled = watching.stalled(conn, now_s=self._work.unix_time()) if changed else []
        of_projects = [key for key in stalled if project_of(key[0]) in changed]
        return Affected(sorted(found), [key for key in of_projects if self._is_mine(key[0])])

    def waiting(self) -> list[tuple[str, int]]:
        """Current runs of the shard's jobs of which an alert only waits for time to go by."""
        with self._work.store.read() as conn:
            mine = filter(self._is_mine, alerts.waiting_for_time(conn))
            return [(each, jobs.get(conn, each).epoch) for each in mine]

    def is_waiting(self, job_id: str) -> bool:
        """Whether an alert of the job only waits for time to go by."""
        book = self._books.get(job_id)
        return book is not None and book.has_pending_by_clock

    def forget(self, job_id: str) -> None:
        """What is in memory of a job may be wrong, or is not needed any more."""
        self._books.pop(job_id, None)
        self._epochs.pop(job_id, None)
        self._over.pop(job_id, None)

    def keep(self, job_ids: Collection[str]) -> None:
        """Forget all others."""
        for job_id in self._books.keys() - set(job_ids):
            self.forget(job_id)

    def _opened(self, job_id: str, epoch: int = 0) -> tuple[Book, list[Change]]:
        """The job's book in this run; opening one may end alerts whose rules went meanwhile."""
        if job_id in self._books:
            self._relabel(job_id, epoch)
            return self._books[job_id], []
        with self._work.store.read() as conn:
            job = jobs.get(conn, job_id)
            book = Book(
                job_id,
                alerts.of_job(conn, job_id),
                labels=job.labels,
                counted_through=_newest(conn, job_id),
            )
            rules = self._rules.of(conn, project_of(job_id))
            self._over[job_id] = watching.over_through(conn, job_id)
        self._books[job_id], self._epochs[job_id] = book, job.epoch
        return book, book.adopt(rules, self._work.unix_time())

    def _relabel(self, job_id: str, epoch: int) -> None:
        if epoch > self._epochs[job_id]:
            with self._work.store.read() as conn:
                self._books[job_id].relabel(jobs.run(conn, job_id, epoch).labels)
            self._epochs[job_id] = epoch

    def _is_mine(self, job_id: str) -> bool:
        return shard_of(job_id, self._work.num_shards) == self._shard

    def _with_alerts(self, conn: Connection, project: str) -> set[str]:
        found: set[str] = set()
        states, cursor = alerts.page(conn, project, limit=_PAGE)
        while True:
            found.update(state.job_id for state in states)
            if cursor is None:
                break
            states, cursor = alerts.page(conn, project, cursor=cursor, limit=_PAGE)
        return set(filter(self._is_mine, found))


def _newest(conn: Connection, job_id: str) -> Place | None:
    """Where the newest window is that has counted: what comes before it must not count again."""
    newest, _ = windows.page(conn, job_id, limit=_LOOKED_THROUGH)
    counted = (each for each in newest if each.state == "complete" and each.verdict is not None)
    return next((place_of(each.window_id) for each in counted), None)
