"""One shard's jobs, while this consumer holds the shard's lease: batches in, stored windows out.

The order is what keeps the promise: assemble and analyse in memory, commit everything in one
transaction that checks the lease, then tell the queue, then the pages. A crash anywhere repeats
work and loses none. What goes wrong with one job stops no other.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal

import structlog
from structlog.contextvars import bound_contextvars

from app.alerts.alert import AlertState
from app.alerts.rules import job_ended
from app.consumer import turn as turns_
from app.consumer.endings import Endings
from app.consumer.poison import Poison, dead_letter
from app.consumer.run import Run, RunKey
from app.consumer.runs import JobTrouble, Runs
from app.consumer.saving import News, Outcome, worst_worker
from app.consumer.turn import RunTurn, Turn
from app.consumer.workplace import Workplace
from app.errors import LeaseLost, PacelineError, Unavailable
from app.ingest import codec, spool
from app.ingest.assembler import Change
from app.ingest.inflate import decoded_bytes
from app.ingest.queue import Entry
from app.monitor import observe
from app.store import alerts, jobs, shards
from app.store.engine import with_longer_limit

log = structlog.get_logger()

TURN_BYTES = 64 << 20  # of opened batches


class ShardWork:
    """The runs of one shard. After any error, throw it away and make a new one from the store.

    Whoever makes one hands it the entries that are pending, too.
    """

    def __init__(self, workplace: Workplace, shard: int, owner: str, fence: int) -> None:
        self._work = workplace
        self._shard = shard
        self._owner = owner
        self._fence = fence
        self._more_waits = False
        self._alert_states: dict[str, AlertState] = {}
        self._poison = Poison(workplace, shard)
        self._runs = Runs(workplace, shard)
        self._endings = Endings(workplace, shard, self._runs.stuck)
        with workplace.store.read() as conn:
            self._committed = shards.committed(conn, shard)
        self._load(self._runs.kept())

    def take(self, entries: Iterable[Entry], *, more_waits: bool = False) -> None:
        """Store the batches of these queue entries, and the windows that they revise or close.

        While more waits behind them, open windows are left for a later turn. An entry that cannot
        be taken becomes a dead letter; the others go on.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        entries = list(entries)
        self._more_waits = more_waits
        if known := [each.entry_id for each in entries if each.entry_id in self._committed]:
            self._work.queue.done(self._shard, known)  # as it was not told in time before
        new = [each for each in entries if each.entry_id not in self._committed]
        for part in _in_parts([each for each in new if not self._poison.is_suspect(each)]):
            self._take_together(part)
        for entry in filter(self._poison.is_suspect, new):
            self._take_suspect(entry)

    def tick(self) -> None:
        """Close what time, or the end of a run, closes; say who has fallen silent.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        self._load(self._runs.forgotten)
        now_s = self._work.monotonic()
        due: dict[str, list[RunKey]] = defaultdict(list)
        for key in self._runs.due(now_s):
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
        self._runs.listen(self._owner, self._fence)
        self._runs.let_go()

    def _load(self, keys: Iterable[RunKey]) -> None:
        for key in keys:
            with suppress(JobTrouble):
                self._tried(key[0], partial(self._runs.get, key))

    def _take_together(self, entries: list[Entry]) -> None:
        by_job: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_job[entry.job_id].append(entry)
        deeds = {job_id: partial(self._take, mine) for job_id, mine in by_job.items()}
        for job_id in self._turn(deeds):
            for entry in by_job[job_id]:
                self._take_alone(entry)

    def _take(self, entries: list[Entry], turn: Turn) -> None:
        turn.entry_ids += [entry.entry_id for entry in entries]
        for entry in entries:
            self._add(turn, entry)
        for each in list(turn.runs.values()):
            settle = each.run.assembler.settle
            changes = settle(self._work.monotonic(), tells_open=not self._more_waits)
            self._observe(turn, each, changes)

    def _add(self, turn: Turn, entry: Entry) -> None:
        try:
            plain = codec.opened(entry.body)
            wire = codec.parsed(plain)
            run = self._runs.get((entry.job_id, wire.epoch))
            batch = codec.of_parsed(wire, run.assembler.job.op_types)
        except PacelineError as error:
            if isinstance(error, Unavailable):
                raise
            log.error("entry unreadable", entry=entry.entry_id, job=entry.job_id, reason=str(error))
            turn.letters.append(dead_letter(entry, str(error), self._work.unix_time()))
            return
        each = turn.of(run)
        added = run.add(batch, plain, self._work.monotonic(), self._work.unix_time())
        if added.verdict != "new":
            return
        each.taken.append(spool.Taken(entry.body, added.dropped))
        each.spooled_through = max(each.spooled_through, added.last_step)
        if batch.columns.num_ops:
            each.newest_step = max(each.newest_step or 0, int(batch.columns.step.max()))

    def _take_alone(self, entry: Entry) -> None:
        """Take an entry that has failed among others; after some attempts it is a dead letter."""
        for _ in range(self._poison.attempts):
            if not self._turn({entry.job_id: partial(self._take, [entry])}):
                return
        log.error("entry given up", entry=entry.entry_id, job=entry.job_id)
        self._give_up(entry, "an error of Paceline's own: its log has the traceback")

    def _take_suspect(self, entry: Entry) -> None:
        """Take an entry that may have ended the consumers that had it before."""
        if self._poison.begin(entry):
            self._take_alone(entry)
        else:
            log.error("entry given up", entry=entry.entry_id, job=entry.job_id)
            self._give_up(entry, "several consumers ended while they worked on it")
        self._poison.end(entry)

    def _give_up(self, entry: Entry, reason: str) -> None:
        letter = dead_letter(entry, reason, self._work.unix_time())
        turn = Turn(letters=[letter], entry_ids=[entry.entry_id])
        self._tried(entry.job_id, partial(self._commit, [turn]))

    def _tick(self, now_s: float, due: list[RunKey], over: list[jobs.EndedRun], turn: Turn) -> None:
        for key in due:
            each = turn.of(self._runs.get(key))
            self._observe(turn, each, each.run.assembler.settle(now_s))
        for ended in over:
            each = turn.of(self._runs.get((ended.job_id, ended.epoch)))
            each.is_closed = True
            self._observe(turn, each, each.run.assembler.finish(now_s, _ending(ended)))
            if not ended.is_superseded:
                self._end_alert(turn, each.run)

    def _turn(self, deeds: Mapping[str, Callable[[Turn], None]]) -> list[str]:
        """Do and commit these; returns the jobs whose deed failed, of which nothing was done.

        Where the store is to blame, the entries stay in the queue and come again later.
        """
        turns: dict[str, Turn] = {}
        failed = []
        for job_id, deed in deeds.items():
            turns[job_id] = Turn()
            try:
                done = self._tried(job_id, partial(deed, turns[job_id]))
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
            self._commit(turns.values())
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:
            log.warning("turn committed job by job", shard=self._shard, reason=repr(error))
            for job_id, turn in turns.items():
                if not self._tried(job_id, partial(self._commit, [turn])):
                    self._leave(turn, job_id)

    def _leave(self, turn: Turn, job_id: str) -> None:
        """The store is to blame: the entries stay in the queue, and nobody else waits for them."""
        self._runs.stuck |= dict.fromkeys(turn.entry_ids, job_id)

    def _tried(self, job_id: str, deed: Callable[[], object]) -> bool:
        """Whether the deed was done; if not, the job is forgotten, to be loaded again."""
        try:
            with bound_contextvars(shard=self._shard, job=job_id):
                deed()
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:
            if not isinstance(error, JobTrouble):
                log.exception("job failed", shard=self._shard, job=job_id)
            self._alert_states.pop(job_id, None)
            self._runs.forget(job_id)
            if isinstance(error, JobTrouble):
                raise
            return False
        return True

    def _observe(self, turn: Turn, each: RunTurn, changes: list[Change]) -> None:
        job_id = each.run.key[0]
        for change in changes:
            before = self._alert_state(job_id)
            observation = observe(change.window, before, self._work.rule)
            turn.outcomes.append(Outcome(job_id, change, observation))
            if observation.alert_state != before:
                self._alert_states[job_id] = observation.alert_state
                turn.alert_states[job_id] = observation.alert_state
            if observation.transition is not None:
                worst = worst_worker(observation, each.run.assembler.roll.hosts())
                turn.news.append(News(job_id, change.window.job, observation.transition, worst))

    def _end_alert(self, turn: Turn, run: Run) -> None:
        job_id = run.key[0]
        state, transition = job_ended(self._alert_state(job_id), self._work.rule)
        self._alert_states[job_id] = turn.alert_states[job_id] = state
        if transition is not None:
            turn.news.append(News(job_id, run.assembler.job, transition, None))

    def _commit(self, turns: Collection[Turn]) -> None:
        work = self._work
        turns = [turn for turn in turns if not turn.is_empty]
        if not turns:
            return
        entry_ids = [entry_id for turn in turns for entry_id in turn.entry_ids]
        with work.store.write() as conn:
            with_longer_limit(conn)
            shards.check(conn, self._shard, self._owner, self._fence)
            messages = turns_.save(conn, work, turns)
            if entry_ids:
                shards.note_committed(conn, self._shard, entry_ids)
        if entry_ids:
            work.queue.done(self._shard, entry_ids)
            for entry_id in entry_ids:
                self._runs.stuck.pop(entry_id, None)
        for message in messages:
            work.announcer.announce(message)
        for turn in turns:
            for each in turn.runs.values():
                each.run.assembler.roll.has_new_hosts &= not each.has_state
                if each.is_closed:
                    self._runs.close(each.run.key)
            for letter in turn.letters:  # its run's counts have grown in the store alone
                self._runs.forget(letter.job_id)

    def _alert_state(self, job_id: str) -> AlertState:
        if job_id not in self._alert_states:
            with self._work.store.read() as conn:
                state = alerts.alert_state(conn, job_id, self._work.rule.name)
            self._alert_states[job_id] = state
        return self._alert_states[job_id]


def _in_parts(entries: list[Entry]) -> Iterator[list[Entry]]:
    """The entries in their order, as many at once as fit into memory when they are opened."""
    part: list[Entry] = []
    room = TURN_BYTES
    for entry in entries:
        size = decoded_bytes(entry.body)
        if part and size > room:
            yield part
            part, room = [], TURN_BYTES
        part.append(entry)
        room -= size
    if part:
        yield part


def _ending(run: jobs.EndedRun) -> Literal["complete", "superseded"]:
    return "superseded" if run.is_superseded else "complete"
