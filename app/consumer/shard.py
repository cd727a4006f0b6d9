"""One shard's jobs, while this consumer holds the shard's lease: batches in, stored windows out.

The order is what keeps the promise: assemble and analyse in memory, commit everything in one
transaction that checks the lease, then tell the queue, then the pages. A crash anywhere repeats
work and loses none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import structlog

from app.alerts.alert import AlertState
from app.alerts.rules import job_ended
from app.consumer.saving import (
    News,
    Outcome,
    save_alert_state,
    save_news,
    save_window,
    worst_worker,
)
from app.consumer.workplace import Workplace
from app.errors import PacelineError
from app.ingest import codec
from app.ingest.assembler import Change, RunAssembler
from app.ingest.batch import OpBatch
from app.ingest.queue import Entry, shard_of
from app.monitor import observe
from app.store import alerts, batches, hosts, jobs, shards
from app.store.batches import BatchRow
from app.store.engine import Connection
from app.trace.job import Job

log = structlog.get_logger()

RunKey = tuple[str, int]  # job_id, epoch


@dataclass(slots=True)
class Turn:
    """What one turn changed in memory and has to commit."""

    rows: list[BatchRow] = field(default_factory=list)
    touched: set[RunKey] = field(default_factory=set)
    closed: set[RunKey] = field(default_factory=set)
    last_steps: dict[RunKey, int] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    news: list[News] = field(default_factory=list)
    alert_states: dict[str, AlertState] = field(default_factory=dict)
    entry_ids: list[str] = field(default_factory=list)


class ShardWork:
    """The runs of one shard. After any error, throw it away and make a new one from the store."""

    def __init__(self, workplace: Workplace, shard: int, fence: int) -> None:
        self._work = workplace
        self._shard = shard
        self._fence = fence
        self._runs: dict[RunKey, RunAssembler] = {}
        self._alert_states: dict[str, AlertState] = {}
        self._ended_at_entry: dict[RunKey, str] = {}
        self._hosts_saved: dict[RunKey, dict[tuple[int, int], str]] = {}
        with workplace.store.read() as conn:
            for key in batches.jobs(conn):
                if shard_of(key[0], workplace.num_shards) == shard:
                    self._load(conn, key)

    def take(self, entries: Iterable[Entry]) -> None:
        """Store the batches of these queue entries, and the windows that they revise or close.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        turn = Turn()
        for entry in entries:
            batch = _read(entry)
            if batch is not None:
                self._add(turn, entry, batch)
        for key in turn.touched:
            self._observe(turn, key, self._run(key).settle(self._work.monotonic()))
        self._commit(turn)

    def tick(self) -> None:
        """Close what time, or the end of a run, closes.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        turn = Turn()
        now_s = self._work.monotonic()
        for key, run in self._runs.items():
            deadline_s = run.next_deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                turn.touched.add(key)
                self._observe(turn, key, run.settle(now_s))
        for ended in self._ended_runs():
            key = (ended.job_id, ended.epoch)
            turn.touched.add(key)
            turn.closed.add(key)
            self._observe(turn, key, self._run(key).finish(now_s, _ending(ended)))
            if not ended.is_superseded:
                self._end_alert(turn, key)
        if turn.touched:
            self._commit(turn)

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

    def _ended_runs(self) -> list[jobs.EndedRun]:
        """Runs that are over and of which nothing is left in the queue.

        What was acknowledged before the end lies in the queue before what came after it was seen.
        """
        work = self._work
        with work.store.read() as conn:
            over = [
                run
                for run in jobs.unfinished(conn)
                if shard_of(run.job_id, work.num_shards) == self._shard
            ]
        if not over:
            self._ended_at_entry.clear()
            return []
        newest, oldest = work.queue.newest(self._shard), work.queue.oldest(self._shard)
        ready = []
        for run in over:
            seen_at = self._ended_at_entry.setdefault((run.job_id, run.epoch), newest)
            if oldest is None or _number(oldest) > _number(seen_at):
                ready.append(run)
        return ready

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

    def _commit(self, turn: Turn) -> None:
        work = self._work
        with work.store.write() as conn:
            shards.check(conn, self._shard, self._fence)
            batches.add(conn, turn.rows)
            messages = [save_window(conn, work, outcome) for outcome in turn.outcomes]
            messages += [save_news(conn, work, news) for news in turn.news]
            for job_id, state in turn.alert_states.items():
                save_alert_state(conn, work, job_id, state)
            for key in turn.touched:
                self._save_run(conn, turn, key)
        if turn.entry_ids:
            work.queue.done(self._shard, turn.entry_ids)
        for message in messages:
            work.announcer.announce(message)
        for key in turn.closed:
            del self._runs[key]

    def _save_run(self, conn: Connection, turn: Turn, key: RunKey) -> None:
        job_id, epoch = key
        batches.save_cursor(conn, job_id, epoch, self._runs[key].dump())
        names = self._runs[key].hosts()
        if names != self._hosts_saved.get(key, {}):
            hosts.save(conn, job_id, epoch, names)
            self._hosts_saved[key] = names
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
        registered = jobs.run(conn, job_id, epoch)
        self._runs[key] = RunAssembler.restore(
            Job(registered.name, registered.parallelism, registered.num_gpus),
            epoch,
            batches.load_cursors(conn, job_id).get(epoch),
            [codec.read(body) for body in batches.load(conn, job_id, epoch)],
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


def _read(entry: Entry) -> OpBatch | None:
    try:
        return codec.read(entry.body)
    except PacelineError as error:
        # It stays in the queue, so nothing is lost; only a broken release can get here.
        log.error("entry unreadable", entry=entry.entry_id, job=entry.job_id, reason=str(error))
        return None


def _ending(run: jobs.EndedRun) -> Literal["complete", "superseded"]:
    return "superseded" if run.is_superseded else "complete"


def _number(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence)
