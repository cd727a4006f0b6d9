"""One shard's jobs, while this consumer holds the shard's lease: batches in, stored windows out.

Order: assemble and analyse in memory, commit everything in one transaction that checks the lease,
acknowledge to the queue, announce to the pages. A crash at any point repeats work and loses none.
An error in one job stops no other job.

Entries are taken in chunks that fit into memory. Those that are delivered again and again are tried
apart (`poison.py`), and the one that fails then, too, is saved as a dead letter. A run that has
ended is closed once the queue holds no entry of it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog

from app.alerts.facts import MissingDataFacts
from app.alerts.rules.evaluation import AlertChange
from app.consumer.alert_state import ShardAlerts
from app.consumer.commit import RunTurn, ShardLease, Turn, TurnCommitter, WindowOutcome
from app.consumer.context import ConsumerContext
from app.consumer.poison import PoisonTracker, split_by_memory
from app.consumer.run_cache import JobStateUnreadable, LoadedRun, RunCache, RunKey, silence_facts
from app.errors import LeaseLost, PacelineError, Unavailable
from app.ingest.assembly.assembler import RunAssembler, SpooledBatch
from app.ingest.assembly.windows import WindowRevision
from app.ingest.queue import Entry, entry_order
from app.ingest.wire import codec
from app.monitor import observe
from app.store import exits, jobs, shards
from app.store import runs as stored_runs
from app.store.dead_letters import DeadLetter
from app.store.runs import SilentRanks
from app.trace.exits import end_sentence
from app.trace.job import shard_of

log = structlog.get_logger()


class ShardWork:
    """The runs of one shard. After any error, discard it and make a new one from the store.

    The caller must pass it the pending entries of the queue, too.
    """

    def __init__(self, context: ConsumerContext, shard: int, owner: str, fence: int) -> None:
        self._context = context
        self._shard = shard
        self._more_waits = False
        self._alerts = ShardAlerts(context, shard)
        self._poison = PoisonTracker(context, shard)
        self._runs = RunCache(context, shard)
        self._committer = TurnCommitter(
            context, ShardLease(shard, owner, fence), self._runs, self._alerts
        )
        self._ended_runs = EndedRunTracker(context, shard, self._runs.stuck_entries)
        with context.store.read() as conn:
            self._committed = shards.committed(conn, shard)
        self._load([*self._runs.to_load(), *self._alerts.runs_pending_by_clock()])

    def take(self, entries: Iterable[Entry], *, more_waits: bool = False) -> None:
        """Store the batches of these queue entries, and the windows that they revise or close.

        With `more_waits` (the queue holds more entries), open windows are left for a later turn.
        An entry that cannot be processed becomes a dead letter.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        entries = list(entries)
        self._more_waits = more_waits
        if known := [entry.entry_id for entry in entries if entry.entry_id in self._committed]:
            self._context.queue.done(self._shard, known)  # the acknowledgement was lost
        new = [entry for entry in entries if entry.entry_id not in self._committed]
        suspects = [entry for entry in new if self._poison.is_suspect(entry)]
        others = [entry for entry in new if not self._poison.is_suspect(entry)]
        for part in split_by_memory(others):
            self._take_together(part)
        for part in self._poison.parts(suspects):
            self._try(part)

    @property
    def stuck_jobs(self) -> set[str]:
        """Jobs of which some entries cannot be taken: others of the shard do not wait for them."""
        return set(self._runs.stuck_entries.values())

    def taken_before_s(self) -> float | None:
        """Seconds since all that had come was taken; None where that is not known yet."""
        looks = self._runs.looks
        return self._context.monotonic() - looks.taken_s if looks.has_caught_up else None

    def tick(self) -> None:
        """Close windows that are due or whose run has ended; save which ranks are silent.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        self._load(self._runs.to_reload)
        affected = self._alerts.jobs_with_changed_rules()
        self._load(affected.stalled)
        self._run_alert_turns(affected.jobs, self._alerts.apply_rules)
        self._runs.look()
        if self._runs.looks.is_empty:
            self._poison.forget()
        due: dict[str, list[RunKey]] = defaultdict(list)
        for key in self._runs.due():
            due[key[0]].append(key)
        over: dict[str, list[stored_runs.EndedRun]] = defaultdict(list)
        for ended in self._ended_runs.ready():
            over[ended.job_id].append(ended)
        self._committer.run_turns(
            {
                job_id: partial(self._tick, due[job_id], over[job_id])
                for job_id in [*due, *(over.keys() - due.keys())]
            }
        )
        self._load(self._runs.starting())
        silent = self._runs.silent_ranks()
        save = self._save_silent_ranks
        self._committer.run_turns({job_id: partial(save, silent[job_id]) for job_id in silent})
        if self._runs.has_listened:
            self._end_quiet_runs()
            self._run_alert_turns(self._alerts.jobs_put_away(), self._alerts.put_away)
        self._runs.evict_stalled(self._alerts.is_pending_by_clock)
        self._alerts.evict_all_but(self._runs.jobs)

    def _load(self, keys: Iterable[RunKey]) -> None:
        for key in keys:
            with suppress(JobStateUnreadable):
                self._committer.run_isolated(key[0], partial(self._runs.get, key))

    def _take_together(self, entries: list[Entry]) -> None:
        by_job: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_job[entry.job_id].append(entry)
        actions = {job_id: partial(self._take, of_job) for job_id, of_job in by_job.items()}
        for job_id in self._committer.run_turns(actions):
            for entry in by_job[job_id]:
                self._take_alone(entry)

    def _take(self, entries: list[Entry], turn: Turn) -> None:
        turn.entry_ids += [entry.entry_id for entry in entries]
        for entry in entries:
            self._add(turn, entry)
        if turn.runs:
            turn.alerts += self._alerts.load(turn.job_id)
        now_s = self._runs.heard_of_s(turn.job_id)
        for run_turn in list(turn.runs.values()):
            assembler = self._assembler(run_turn)
            revisions = assembler.settle(now_s, tells_open=not self._more_waits)
            self._observe(turn, run_turn, revisions)

    def _add(self, turn: Turn, entry: Entry) -> None:
        try:
            plain = codec.open_entry(entry.body)
            wire = codec.parse_entry(plain)
            run = self._runs.get((entry.job_id, wire.epoch))
            batch = codec.entry_batch(wire, run.assembler.job.op_types)
        except PacelineError as error:
            if isinstance(error, Unavailable):
                raise
            log.error("entry unreadable", entry=entry.entry_id, job=entry.job_id, reason=str(error))
            turn.letters.append(dead_letter(entry, str(error), self._context.unix_time()))
            return
        changes = turn.of(run)
        now_s, unix_s = self._context.monotonic(), self._context.unix_time()
        waited_s = now_s - self._runs.looks.came_s(entry.entry_id, now_s)
        added = run.add(batch, plain, now_s, unix_s, waited_s)
        if added.verdict != "new":
            return
        changes.taken.append(SpooledBatch(entry.body, added.dropped))
        changes.received_s = max(changes.received_s, entry.received_s)
        changes.came_s = max(changes.came_s, unix_s - waited_s)
        changes.spooled_through = max(changes.spooled_through, added.last_step)
        changes.newest_step = run.last_step

    def _take_alone(self, entry: Entry) -> None:
        """Take an entry that failed among others; after _MAX_ATTEMPTS it is a dead letter."""
        for _ in range(_MAX_ATTEMPTS):
            if not self._committer.run_turns({entry.job_id: partial(self._take, [entry])}):
                return
        self._save_as_dead_letter(entry, "an error of Paceline's own: its log has the traceback")

    def _try(self, entries: list[Entry]) -> None:
        """Take entries of one job of which one may have killed its earlier consumers."""
        if len(entries) == 1 and self._poison.is_poison(entries[0]):
            self._save_as_dead_letter(entries[0], "several consumers ended while they worked on it")
        else:
            self._poison.begin(entries)
            try:
                self._take_together(entries)
            except (LeaseLost, Unavailable):
                self._poison.leave(entries)  # another's turn, or a later one: not a death
                raise
        self._poison.end(entries)

    def _save_as_dead_letter(self, entry: Entry, reason: str) -> None:
        log.error("entry given up", entry=entry.entry_id, job=entry.job_id)
        letter = dead_letter(entry, reason, self._context.unix_time())
        turn = Turn(entry.job_id, letters=[letter], entry_ids=[entry.entry_id])
        self._committer.run_isolated(entry.job_id, partial(self._committer.commit, [turn]))

    def _tick(self, due: list[RunKey], over: list[stored_runs.EndedRun], turn: Turn) -> None:
        now_s = self._runs.heard_of_s(turn.job_id)
        turn.alerts += self._alerts.load(turn.job_id)
        for key in due:
            changes = turn.of(self._runs.get(key))
            self._observe(turn, changes, self._assembler(changes).settle(now_s))
        for ended in over:
            changes = turn.of(self._runs.get((ended.job_id, ended.epoch)))
            changes.is_closed = True
            finish = self._assembler(changes).finish
            final = finish(now_s, "superseded" if ended.is_superseded else "complete")
            self._observe(turn, changes, final)
            if not ended.is_superseded:
                turn.alerts += self._alerts.ended(ended.job_id, ended.epoch)
                facts = self._end_facts(changes.run)
                turn.alerts += self._alerts.silence(changes.run.key, facts)

    def _end_facts(self, run: LoadedRun) -> MissingDataFacts:
        """The end of a run as facts: of one that crashed there is an alert."""
        with self._context.store.read() as conn:
            job = jobs.get(conn, run.key[0])
        has_crashed = job.epoch == run.key[1] and job.ended_as == "crashed"
        return MissingDataFacts(
            crash=end_sentence(job.end_cause) if has_crashed and job.end_cause else None,
            crashed_at_s=job.ended_s if has_crashed else None,
            num_gpus=job.num_gpus,
            last_step=job.last_step,
        )

    def _end_quiet_runs(self) -> None:
        """End runs of which some ranks have reported their end, and nothing more comes."""
        context = self._context
        quiet = partial(exits.quiet_since_exits, now_s=context.unix_time())
        for job_id, epoch in context.read_once("quiet runs", quiet):
            is_own = shard_of(job_id, context.num_shards) == self._shard
            if not is_own or self._runs.is_excused((job_id, epoch)):
                continue
            with context.store.write() as conn:
                has_ended = exits.decide(conn, job_id, epoch, is_quiet=True)
            if has_ended:
                context.announcer.announce({"event": "job", "job_id": job_id})

    def _assembler(self, changes: RunTurn) -> RunAssembler:
        """The run's assembler, which keeps operations of windows only where the disk has room."""
        changes.run.assembler.keeps_ops = self._context.disk.stores_operations
        return changes.run.assembler

    def _run_alert_turns(
        self, job_ids: Iterable[str], changes_of: Callable[[str], list[AlertChange]]
    ) -> None:
        def add_changes(turn: Turn) -> None:
            turn.alerts += changes_of(turn.job_id)

        self._committer.run_turns(dict.fromkeys(job_ids, add_changes))

    def _save_silent_ranks(self, silent: Mapping[RunKey, SilentRanks], turn: Turn) -> None:
        """Save changes of the silent ranks; alerts are evaluated for the newest run."""
        runs = {key: self._runs.get(key) for key in silent}
        turn.silences = {
            key: silence for key, silence in silent.items() if silence != runs[key].saved_silence
        }
        newest = max(silent)
        turn.alerts += self._alerts.silence(newest, silence_facts(runs[newest], silent[newest]))

    def _observe(self, turn: Turn, changes: RunTurn, revisions: list[WindowRevision]) -> None:
        try:
            self._observe_all(turn, changes, revisions)
        finally:
            # Neither in a transaction, which it would keep open, nor beside another attempt.
            wait([revision.packing for revision in revisions if revision.packing is not None])
        for revision in revisions:
            revision.finish_packing()

    def _observe_all(self, turn: Turn, changes: RunTurn, revisions: list[WindowRevision]) -> None:
        run, job_id = changes.run, turn.job_id
        for revision in revisions:
            self._context.note_progress()
            observation = observe(revision.window, run.history, now_s=self._context.unix_time())
            if revision.window.state == "open":
                turn.outcomes.append(WindowOutcome(job_id, revision, observation))
                continue
            if observation.recent is not None:
                run.history = run.history.extended(observation.recent)
                changes.has_history = True
            judged = run.recent.add(observation.result)
            turn.outcomes.append(WindowOutcome(job_id, revision, observation, judged))
            recent = None if judged is None else judged.result
            turn.alerts += self._alerts.window(job_id, replace(observation.facts, recent=recent))


_MAX_ATTEMPTS = 2  # of one process, at an entry that fails without killing it


def dead_letter(entry: Entry, reason: str, now_s: float) -> DeadLetter:
    """The entry as a dead letter."""
    epoch, num_ops = None, 0
    with suppress(PacelineError):  # one that is unreadable is dead for that reason
        batch = codec.parse_entry(codec.open_entry(entry.body))
        epoch, num_ops = batch.epoch, codec.num_ops_of_entry(batch)
    return DeadLetter(
        job_id=entry.job_id,
        epoch=epoch,
        entry_id=entry.entry_id,
        num_ops=num_ops,
        deliveries=entry.deliveries,
        reason=reason,
        received_s=entry.received_s,
        died_s=now_s,
        body=entry.body,
    )


class EndedRunTracker:
    """Runs of one shard that have ended or were superseded, and are not closed yet.

    `stuck` maps entries that stay in the queue to their jobs; only those jobs wait for them.
    """

    def __init__(self, context: ConsumerContext, shard: int, stuck: Mapping[str, str]) -> None:
        self._stuck = stuck
        self._context = context
        self._shard = shard
        self._seen_at: dict[RunKey, str] = {}

    def ready(self) -> list[stored_runs.EndedRun]:
        """Runs to close now: every entry that was queued when the end was first seen is done."""
        context = self._context
        ended = context.read_once("ended runs", stored_runs.ended_not_closed)
        over = [run for run in ended if shard_of(run.job_id, context.num_shards) == self._shard]
        keys = [(run.job_id, run.epoch) for run in over]
        self._seen_at = {key: self._seen_at[key] for key in keys if key in self._seen_at}
        if not over:
            return []
        newest = context.queue.newest(self._shard)
        oldest = context.queue.oldest(self._shard, besides=self._stuck)
        waiting = set(self._stuck.values())
        ready = []
        for key, run in zip(keys, over, strict=True):
            if run.job_id in waiting:
                continue
            seen_at = self._seen_at.setdefault(key, newest)
            if entry_order(newest) < entry_order(seen_at):  # the server was wiped: its ids restart
                seen_at = self._seen_at[key] = newest
            if oldest is None or entry_order(oldest) > entry_order(seen_at):
                ready.append(run)
        return ready
