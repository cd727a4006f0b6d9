"""One shard's jobs, while this consumer holds the shard's lease: batches in, stored windows out.

The order is what keeps the promise: assemble and analyse in memory, commit everything in one
transaction that checks the lease, then tell the queue, then the pages. A crash anywhere repeats
work and loses none. What goes wrong with one job stops no other.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import structlog

from app.alerts.alert import AlertState
from app.alerts.rules import job_ended
from app.consumer.endings import Endings, RunKey
from app.consumer.saving import (
    News,
    Outcome,
    save_alert_state,
    save_news,
    save_window,
    worst_worker,
)
from app.consumer.workplace import Workplace
from app.errors import LeaseLost, PacelineError, Unavailable
from app.ingest import codec
from app.ingest.assembler import Change, RunAssembler
from app.ingest.batch import OpBatch
from app.ingest.queue import Entry, Message, shard_of
from app.monitor import observe
from app.store import alerts, batches, hosts, jobs, shards
from app.store.batches import BatchRow
from app.store.engine import Connection

log = structlog.get_logger()


@dataclass(slots=True)
class Turn:
    """What one turn changed in memory of one job and has to commit."""

    rows: list[BatchRow] = field(default_factory=list)
    touched: set[RunKey] = field(default_factory=set)
    closed: set[RunKey] = field(default_factory=set)
    last_steps: dict[RunKey, int] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    news: list[News] = field(default_factory=list)
    alert_states: dict[str, AlertState] = field(default_factory=dict)
    entry_ids: list[str] = field(default_factory=list)


class ShardWork:
    """The runs of one shard. After any error, throw it away and make a new one from the store.

    Whoever makes one hands it the entries that are pending, too.
    """

    def __init__(self, workplace: Workplace, shard: int, fence: int) -> None:
        self._work = workplace
        self._shard = shard
        self._fence = fence
        self._runs: dict[RunKey, RunAssembler] = {}
        self._alert_states: dict[str, AlertState] = {}
        self._endings = Endings(workplace, shard)
        self._hosts_saved: dict[RunKey, dict[tuple[int, int], str]] = {}
        with workplace.store.read() as conn:
            kept = batches.jobs(conn)
        for key in kept:
            if shard_of(key[0], workplace.num_shards) == shard:
                self._tried(key[0], partial(self._run, key))

    def take(self, entries: Iterable[Entry]) -> None:
        """Store the batches of these queue entries, and the windows that they revise or close.

        An entry that cannot be taken stays in the queue, and is named in the log.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        by_job: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_job[entry.job_id].append(entry)
        deeds = {job_id: partial(self._take, mine) for job_id, mine in by_job.items()}
        for job_id in self._turn(deeds):
            self._take_singly(job_id, by_job[job_id])

    def tick(self) -> None:
        """Close what time, or the end of a run, closes.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        now_s = self._work.monotonic()
        due: dict[str, list[RunKey]] = defaultdict(list)
        for key, run in self._runs.items():
            deadline_s = run.next_deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                due[key[0]].append(key)
        over: dict[str, list[jobs.EndedRun]] = defaultdict(list)
        for ended in self._endings.ready():
            over[ended.job_id].append(ended)
        self._turn(
            {
                job_id: partial(self._tick, now_s, due[job_id], over[job_id])
                for job_id in [*due, *(over.keys() - due.keys())]
            }
        )

    def _take(self, entries: list[Entry], turn: Turn) -> None:
        for entry in entries:
            batch = self._read(entry)
            if batch is None:
                self._endings.left.add(entry.entry_id)
            else:
                self._add(turn, entry, batch)
        for key in turn.touched:
            self._observe(turn, key, self._run(key).settle(self._work.monotonic()))

    def _read(self, entry: Entry) -> OpBatch | None:
        """The batch of an entry; None if nobody can read it."""
        try:
            epoch = codec.epoch_of(entry.body)
        except PacelineError as error:
            _log_unreadable(entry, error)
            return None
        op_types = self._run((entry.job_id, epoch)).job.op_types
        try:
            return codec.read(entry.body, op_types)
        except PacelineError as error:
            _log_unreadable(entry, error)
            return None

    def _take_singly(self, job_id: str, entries: list[Entry]) -> None:
        for entry in entries:
            if self._turn({job_id: partial(self._take, [entry])}):
                log.error("entry left in the queue", entry=entry.entry_id, job=job_id)
                self._endings.left.add(entry.entry_id)

    def _tick(self, now_s: float, due: list[RunKey], over: list[jobs.EndedRun], turn: Turn) -> None:
        for key in due:
            turn.touched.add(key)
            self._observe(turn, key, self._run(key).settle(now_s))
        for ended in over:
            key = (ended.job_id, ended.epoch)
            turn.touched.add(key)
            turn.closed.add(key)
            self._observe(turn, key, self._run(key).finish(now_s, _ending(ended)))
            if not ended.is_superseded:
                self._end_alert(turn, key)

    def _turn(self, deeds: Mapping[str, Callable[[Turn], None]]) -> list[str]:
        """Do and commit these; the jobs that failed are as the store has them."""
        turns = {job_id: Turn() for job_id in deeds}
        failed = [
            job_id
            for job_id, deed in deeds.items()
            if not self._tried(job_id, partial(deed, turns[job_id]))
        ]
        for job_id in failed:
            del turns[job_id]
        try:
            self._commit(turns.values())
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:
            log.warning("turn committed job by job", shard=self._shard, reason=repr(error))
            each = {job_id: partial(self._commit, [turn]) for job_id, turn in turns.items()}
            failed += [job_id for job_id in each if not self._tried(job_id, each[job_id])]
        return failed

    def _tried(self, job_id: str, deed: Callable[[], object]) -> bool:
        """Whether the deed was done; if not, the job is forgotten, to be loaded again."""
        try:
            deed()
        except (LeaseLost, Unavailable):
            raise
        except Exception:
            log.exception("job failed", shard=self._shard, job=job_id)
            self._alert_states.pop(job_id, None)
            for key in [key for key in self._runs if key[0] == job_id]:
                del self._runs[key]
            return False
        return True

    def _add(self, turn: Turn, entry: Entry, batch: OpBatch) -> None:
        key = (entry.job_id, batch.epoch)
        run = self._run(key)
        turn.entry_ids.append(entry.entry_id)
        turn.touched.add(key)
        if run.add(batch, self._work.monotonic()) == "new":
            row = BatchRow(entry.job_id, batch.epoch, batch.rank, batch.batch_seq, entry.body)
            turn.rows.append(row)
            if batch.columns.num_ops:
                newest = max(turn.last_steps.get(key, 0), int(batch.columns.step.max()))
                turn.last_steps[key] = newest

    def _observe(self, turn: Turn, key: RunKey, changes: list[Change]) -> None:
        job_id = key[0]
        for change in changes:
            before = self._alert_state(job_id)
            observation = observe(change.window, before, self._work.rule)
            turn.outcomes.append(Outcome(job_id, change, observation))
            if observation.alert_state != before:
                self._alert_states[job_id] = observation.alert_state
                turn.alert_states[job_id] = observation.alert_state
            if observation.transition is not None:
                worst = worst_worker(observation, self._run(key).hosts())
                turn.news.append(News(job_id, change.window.job, observation.transition, worst))

    def _end_alert(self, turn: Turn, key: RunKey) -> None:
        job_id = key[0]
        state, transition = job_ended(self._alert_state(job_id), self._work.rule)
        self._alert_states[job_id] = turn.alert_states[job_id] = state
        if transition is not None:
            turn.news.append(News(job_id, self._run(key).job, transition, None))

    def _commit(self, turns: Collection[Turn]) -> None:
        work = self._work
        turns = [turn for turn in turns if turn.touched]
        if not turns:
            return
        messages: list[Message] = []
        with work.store.write() as conn:
            shards.check(conn, self._shard, self._fence)
            for turn in turns:
                messages += self._save(conn, turn)
        for key in (key for turn in turns for key in turn.touched):
            self._hosts_saved[key] = self._runs[key].hosts()
        entry_ids = [entry_id for turn in turns for entry_id in turn.entry_ids]
        if entry_ids:
            work.queue.done(self._shard, entry_ids)
            self._endings.left.difference_update(entry_ids)
        for message in messages:
            work.announcer.announce(message)
        for key in {key for turn in turns for key in turn.closed}:
            del self._runs[key]

    def _save(self, conn: Connection, turn: Turn) -> list[Message]:
        work = self._work
        batches.add(conn, turn.rows)
        messages = [save_window(conn, work, outcome) for outcome in turn.outcomes]
        messages += [save_news(conn, work, news) for news in turn.news]
        for job_id, state in turn.alert_states.items():
            save_alert_state(conn, work, job_id, state)
        for key in turn.touched:
            self._save_run(conn, turn, key)
        return messages

    def _save_run(self, conn: Connection, turn: Turn, key: RunKey) -> None:
        job_id, epoch = key
        batches.save_cursor(conn, job_id, epoch, self._runs[key].dump())
        names = self._runs[key].hosts()
        if names != self._hosts_saved.get(key, {}):
            hosts.save(conn, job_id, epoch, names)
        if key in turn.last_steps:
            jobs.touch(
                conn,
                job_id,
                epoch=epoch,
                last_data_s=self._work.unix_time(),
                last_step=turn.last_steps[key],
            )
        if key in turn.closed:
            jobs.mark_closed(conn, job_id, epoch)

    def _run(self, key: RunKey) -> RunAssembler:
        if key not in self._runs:
            with self._work.store.read() as conn:
                self._load(conn, key)
        return self._runs[key]

    def _load(self, conn: Connection, key: RunKey) -> None:
        job_id, epoch = key
        job = jobs.run(conn, job_id, epoch).job
        self._runs[key] = RunAssembler.restore(
            job,
            epoch,
            batches.load_cursors(conn, job_id).get(epoch),
            [codec.read(body, job.op_types) for body in batches.load(conn, job_id, epoch)],
            self._work.monotonic(),
            window_steps=self._work.window_steps,
            deadline_s=self._work.step_deadline_s,
        )

    def _alert_state(self, job_id: str) -> AlertState:
        if job_id not in self._alert_states:
            with self._work.store.read() as conn:
                state = alerts.alert_state(conn, job_id, self._work.rule.name)
            self._alert_states[job_id] = state
        return self._alert_states[job_id]


def _log_unreadable(entry: Entry, error: PacelineError) -> None:
    # It stays in the queue, so nothing is lost; only a broken release can get here.
    log.error("entry unreadable", entry=entry.entry_id, job=entry.job_id, reason=str(error))


def _ending(run: jobs.EndedRun) -> Literal["complete", "superseded"]:
    return "superseded" if run.is_superseded else "complete"
