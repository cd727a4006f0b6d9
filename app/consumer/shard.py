"""One shard's jobs, while this consumer holds the shard's lease: batches in, stored windows out.

The order is what keeps the promise: assemble and analyse in memory, commit everything in one
transaction that checks the lease, then tell the queue, then the pages. A crash anywhere repeats
work and loses none. What goes wrong with one job stops no other.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

import structlog

from app.consumer.books import Books
from app.consumer.commits import Commits, Lease
from app.consumer.endings import Endings, ending_of
from app.consumer.parts import in_parts
from app.consumer.poison import Poison, dead_letter
from app.consumer.run import RunKey
from app.consumer.runs import JobTrouble, Runs
from app.consumer.saving import Outcome
from app.consumer.silence import Silence
from app.consumer.silent_facts import silence_facts
from app.consumer.turn import RunTurn, Turn
from app.consumer.workplace import Workplace
from app.errors import PacelineError, Unavailable
from app.ingest import codec, spool
from app.ingest.assembler import Change
from app.ingest.queue import Entry
from app.monitor import observe
from app.store import shards, watching

log = structlog.get_logger()


class ShardWork:
    """The runs of one shard. After any error, throw it away and make a new one from the store.

    Whoever makes one hands it the entries that are pending, too.
    """

    def __init__(self, workplace: Workplace, shard: int, owner: str, fence: int) -> None:
        self._work = workplace
        self._shard = shard
        self._more_waits = False
        self._books = Books(workplace, shard)
        self._poison = Poison(workplace, shard)
        self._runs = Runs(workplace, shard)
        self._commits = Commits(workplace, Lease(shard, owner, fence), self._runs, self._books)
        self._endings = Endings(workplace, shard, self._runs.stuck)
        with workplace.store.read() as conn:
            self._committed = shards.committed(conn, shard)
        self._load([*self._runs.kept(), *self._books.waiting()])

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
        for part in in_parts([each for each in new if not self._poison.is_suspect(each)]):
            self._take_together(part)
        for entry in filter(self._poison.is_suspect, new):
            self._take_suspect(entry)

    def tick(self) -> None:
        """Close what time, or the end of a run, closes; say who has fallen silent.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        self._load(self._runs.forgotten)
        affected = self._books.affected()
        self._load(affected.stalled)
        self._commits.turn({each: partial(self._adopt, each) for each in affected.jobs})
        now_s = self._work.monotonic()
        due: dict[str, list[RunKey]] = defaultdict(list)
        for key in self._runs.due(now_s):
            due[key[0]].append(key)
        over: dict[str, list[watching.EndedRun]] = defaultdict(list)
        for ended in self._endings.ready():
            over[ended.job_id].append(ended)
        self._commits.turn(
            {
                job_id: partial(self._tick, now_s, due[job_id], over[job_id])
                for job_id in [*due, *(over.keys() - due.keys())]
            }
        )
        self._load(self._runs.starting())
        heard = self._runs.heard()
        self._commits.turn({each: partial(self._listen, heard[each]) for each in heard})
        self._runs.let_go(self._books.is_waiting)
        self._books.keep(self._runs.jobs)

    def _load(self, keys: Iterable[RunKey]) -> None:
        for key in keys:
            with suppress(JobTrouble):
                self._commits.tried(key[0], partial(self._runs.get, key))

    def _take_together(self, entries: list[Entry]) -> None:
        by_job: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_job[entry.job_id].append(entry)
        deeds = {job_id: partial(self._take, mine) for job_id, mine in by_job.items()}
        for job_id in self._commits.turn(deeds):
            for entry in by_job[job_id]:
                self._take_alone(entry)

    def _take(self, entries: list[Entry], turn: Turn) -> None:
        turn.entry_ids += [entry.entry_id for entry in entries]
        for entry in entries:
            self._add(turn, entry)
        if turn.runs:
            turn.alerts += self._books.opened(turn.job_id)
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
        if batch.newest_step is not None:
            each.newest_step = max(each.newest_step or 0, batch.newest_step)

    def _take_alone(self, entry: Entry) -> None:
        """Take an entry that has failed among others; after some attempts it is a dead letter."""
        for _ in range(self._poison.attempts):
            if not self._commits.turn({entry.job_id: partial(self._take, [entry])}):
                return
        self._give_up(entry, "an error of Paceline's own: its log has the traceback")

    def _take_suspect(self, entry: Entry) -> None:
        """Take an entry that may have ended the consumers that had it before."""
        if self._poison.begin(entry):
            self._take_alone(entry)
        else:
            self._give_up(entry, "several consumers ended while they worked on it")
        self._poison.end(entry)

    def _give_up(self, entry: Entry, reason: str) -> None:
        log.error("entry given up", entry=entry.entry_id, job=entry.job_id)
        letter = dead_letter(entry, reason, self._work.unix_time())
        turn = Turn(entry.job_id, letters=[letter], entry_ids=[entry.entry_id])
        self._commits.tried(entry.job_id, partial(self._commits.commit, [turn]))

    def _tick(
        self, now_s: float, due: list[RunKey], over: list[watching.EndedRun], turn: Turn
    ) -> None:
        for key in due:
            each = turn.of(self._runs.get(key))
            self._observe(turn, each, each.run.assembler.settle(now_s))
        for ended in over:
            each = turn.of(self._runs.get((ended.job_id, ended.epoch)))
            each.is_closed = True
            self._observe(turn, each, each.run.assembler.finish(now_s, ending_of(ended)))
            if not ended.is_superseded:
                turn.alerts += self._books.ended(ended.job_id, ended.epoch)

    def _adopt(self, job_id: str, turn: Turn) -> None:
        """The rules of the job's project have changed."""
        turn.alerts += self._books.adopted(job_id)

    def _listen(self, heard: Mapping[RunKey, Silence], turn: Turn) -> None:
        """Say who has fallen silent, or is heard again; alerts go by the newest run."""
        runs = {key: self._runs.get(key) for key in heard}
        turn.silences = {key: each for key, each in heard.items() if each != runs[key].told}
        newest = max(heard)
        turn.alerts += self._books.silence(newest, silence_facts(runs[newest], heard[newest]))

    def _observe(self, turn: Turn, each: RunTurn, changes: list[Change]) -> None:
        job_id = each.run.key[0]
        for change in changes:
            observation = observe(change.window, each.run.history)
            if change.window.state != "open" and observation.recent is not None:
                each.run.history = each.run.history.extended(observation.recent)
                each.has_history = True
            turn.outcomes.append(Outcome(job_id, change, observation))
            if change.window.state != "open":
                turn.alerts += self._books.window(job_id, observation.facts)
