"""The runs of one shard in memory: loaded when a batch comes, evicted when they stall.

A run can be rebuilt from the store at any time. Ranks are silent by the arrival times of their
batches, whatever the batches contain; alert rules get them as facts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha1
from itertools import zip_longest
from math import inf
from typing import Any

import structlog

from app import formatting
from app.alerts.facts import MissingDataFacts
from app.consumer.context import ConsumerContext
from app.consumer.queue_looks import QueueLooks
from app.diagnosis import job_history
from app.diagnosis.job_history import History
from app.errors import ObjectStorageUnavailable, PacelineError
from app.ingest.assembly.assembler import (
    AddedBatch,
    EarlierBatch,
    RunAssembler,
    SpooledBatch,
    unpack_spool,
)
from app.ingest.assembly.rank_tracker import NO_STEP
from app.ingest.assembly.window_codec import PackedWindow
from app.ingest.batch import OpBatch
from app.ingest.queue import entry_order
from app.ingest.wire import codec
from app.store import as_of, hosts, jobs, runs, shards, windows
from app.store.database import Connection, with_longer_limit
from app.store.joint_windows import RecentResults
from app.store.objects import moves
from app.store.runs import IngestCounts, SilentRanks
from app.trace.job import shard_of
from app.trace.ops import OpTypes

log = structlog.get_logger()

RunKey = tuple[str, int]  # job_id, epoch
# Runs within this many times `start_within_s` before a run count as failed starts of the same job;
# earlier ones have been reported.
MAX_START_RATIO = 2
_DIGEST_BITS = 63  # beside the sign


NONE_SILENT = SilentRanks()
_LONG_AGO_S = -1e12  # before any clock starts
# If no rank sends for this share of the timeout, the job counts as paused.
_PAUSE_SHARE = 0.5


class RankWatch:
    """When each rank of one run sent its last batch, by a monotonic clock.

    The run `has_begun` once its first batch has come.
    """

    def __init__(
        self,
        now_s: float,
        registered_unix_s: float,
        known: Iterable[int] = (),
        last_data_unix_s: float | None = None,
        saved: SilentRanks = NONE_SILENT,
        waited_s: float = 0.0,
    ) -> None:
        """Count all `known` ranks as having sent a batch now: arrivals until now were not watched.

        Ranks that were `saved` as silent stay silent until their next batch. A run without any
        batch has been waited for since `waited_s` before `now_s`.
        """
        self.registered_unix_s = registered_unix_s
        self._began_s = now_s
        self._last_batch_s = dict.fromkeys(known, now_s) | dict.fromkeys(
            saved.silent_ranks, _LONG_AGO_S
        )
        self.has_begun = last_data_unix_s is not None or bool(self._last_batch_s)
        self._newest_s = now_s if self.has_begun else now_s - waited_s
        if saved.stalled_since_s is not None:
            self._newest_s = _LONG_AGO_S
        self._newest_unix_s = registered_unix_s if last_data_unix_s is None else last_data_unix_s
        self._silent_before_pause_s: float | None = None

    def note_batch(self, rank: int, at_s: float, unix_s: float) -> None:
        """Note that a batch of this rank came at these times."""
        if not self.has_begun:
            # Other ranks are late from then on: until then, all were starting.
            self._began_s = at_s
            self.has_begun = True
        self._last_batch_s[rank] = max(at_s, self._last_batch_s.get(rank, at_s))
        if at_s >= self._newest_s:
            self._newest_s, self._newest_unix_s = at_s, unix_s

    def silent_ranks(
        self, now_s: float, unix_s: float, timeout_s: float, never_seen: Iterable[int]
    ) -> SilentRanks:
        """Ranks whose last batch is at least `timeout_s` old.

        `never_seen` are ranks that never sent a batch. Until the first batch of the run no rank is
        silent, but the run may have stalled.
        """
        limit_s = self._limit_s(now_s, timeout_s)
        if now_s - self._newest_s >= timeout_s:
            return SilentRanks(stalled_since_s=self._newest_unix_s)
        if not self.has_begun:
            return NONE_SILENT
        silent = {rank: at_s for rank, at_s in self._last_batch_s.items() if at_s <= limit_s}
        if self._began_s <= limit_s:
            silent |= dict.fromkeys(never_seen, self._began_s)
        if not silent:
            return NONE_SILENT
        since_s = unix_s - (now_s - min(silent.values()))
        return SilentRanks(tuple(sorted(silent)), silent_since_s=since_s)

    def _limit_s(self, now_s: float, timeout_s: float) -> float:
        """The time since when a rank must have sent a batch, or it is silent.

        After a pause of all ranks, the first batch restarts the timeout of the others. Ranks that
        were silent before the pause stay silent.
        """
        limit_s, before_s = now_s - timeout_s, self._silent_before_pause_s
        if now_s - self._newest_s >= _PAUSE_SHARE * timeout_s:
            self._silent_before_pause_s = limit_s if before_s is None else before_s
            return self._silent_before_pause_s
        if before_s is not None:
            self._last_batch_s = {
                rank: at_s if at_s <= before_s else now_s
                for rank, at_s in self._last_batch_s.items()
            }
            self._began_s = self._began_s if self._began_s <= before_s else now_s
            self._silent_before_pause_s = None
        return limit_s


@dataclass(slots=True)
class LoadedRun:
    """The assembler of a run, with its counts, silent ranks and history.

    `turn` is the number of the last commit with batches of it; `history` covers its closed
    windows; `last_step` is the last step that a worker has reported, but for one that is far ahead
    of all others: `far_step` is the rank that reported such a one last, and the step. `recent` are
    the results that the job is judged by.
    """

    key: RunKey
    assembler: RunAssembler
    counts: IngestCounts
    turn: int
    rank_watch: RankWatch
    history: History
    recent: RecentResults
    saved_silence: SilentRanks = NONE_SILENT
    last_used_s: float = 0.0
    last_step: int | None = None
    far_step: tuple[int, int] | None = None

    def add(
        self,
        batch: OpBatch,
        body: bytes | bytearray,
        now_s: float,
        unix_s: float,
        waited_s: float = 0.0,
    ) -> AddedBatch:
        """Add a batch that waited in the queue for so long, and count its operations."""
        added = self.assembler.add(batch, now_s, batch_digest(body))
        # A rank that does not exist must not count as silent later.
        if added.verdict != "stranger" and not batch.is_alone:
            self.rank_watch.note_batch(batch.rank, now_s - waited_s, unix_s - waited_s)
        self.last_used_s = now_s
        if batch.newest_step is not None and added.verdict == "new":
            self._note_step(batch.rank, batch.newest_step)
        self.counts = _count_batch(self.counts, batch, added)
        return added

    def _note_step(self, rank: int, step: int) -> None:
        """Of two ranks, where there are two: one from the far future moves nothing."""
        before, far = self.last_step, self.far_step
        if before is not None and step > before + FAR_STEPS:
            self.far_step = rank, step
            is_alone = self.assembler.job.parallelism.num_workers == 1
            if far is None or (far[0] == rank and not is_alone) or step > far[1] + FAR_STEPS:
                return
            step = min(step, far[1])
        self.last_step = step if before is None else max(before, step)


def batch_digest(body: bytes | bytearray) -> int:
    """Tells batches of the same number apart."""
    digest = sha1(body, usedforsecurity=False).digest()
    return ~(int.from_bytes(digest[:8]) >> (64 - _DIGEST_BITS))


def load_run(conn: Connection, context: ConsumerContext, key: RunKey) -> LoadedRun:
    """The run as the store has it; raises JobNotFound."""
    registration = jobs.registration(conn, *key)
    now_s = context.monotonic()
    rows = shards.spooled_batches(conn, *key)
    assembler = RunAssembler.restore(
        registration.job,
        key[1],
        context.assembler_rules,
        lambda first_step: _stored_operations(context, key, first_step),
        blob=shards.load_assembler(conn, *key),
        before=(
            _spooled_batch(turn, taken, registration.op_types)
            for turn, blob in rows
            for taken in unpack_spool(blob)
        ),
        hosts=hosts.load(conn, *key),
        placements=hosts.placements(conn, *key),
        now_s=now_s,
    )
    known = (cursor.rank for cursor in assembler.tracker.cursors if not cursor.is_alone)
    activity = runs.activity(conn, *key)
    # A job that fails at each start registers again and again, and never sends a batch.
    since_s = runs.starting_since(conn, *key, within_s=MAX_START_RATIO * context.start_within_s)
    waited_s = max(0.0, context.unix_time() - since_s)
    turn = max([assembler.turn, *(turn for turn, _ in rows)])
    return LoadedRun(
        key,
        assembler,
        runs.load(conn, *key),
        turn,
        RankWatch(
            now_s, activity.registered_s, known, activity.last_data_s, activity.silence, waited_s
        ),
        _history(conn, key),
        RecentResults(context.store, *key),
        activity.silence,
        now_s,
        activity.last_step,
    )


def _history(conn: Connection, key: RunKey) -> History:
    blob = shards.load_history(conn, *key)
    try:
        return History() if blob is None else job_history.unpack(blob)
    except ValueError as error:
        # Going on is worth more than the history, which builds up again.
        log.warning("history dropped", job=key[0], epoch=key[1], reason=str(error))
        return History()


def _spooled_batch(turn: int, taken: SpooledBatch, op_types: OpTypes) -> EarlierBatch:
    plain = codec.open_entry(taken.body)
    batch = codec.entry_batch(codec.parse_entry(plain), op_types)
    return EarlierBatch(turn, batch, batch_digest(plain), taken.dropped)


def _stored_operations(context: ConsumerContext, key: RunKey, first_step: int) -> PackedWindow:
    job_id, epoch = key
    context.note_progress()  # a turn may revise several large windows
    with context.store.snapshot() as conn:
        operations = moves.find(conn, job_id, f"{epoch}-{first_step}")
        remainders = windows.remainders(conn, job_id, epoch, first_step)
    try:
        # Windows that may be revised do not move; of one that has, the bucket is not waited for.
        rounded = moves.fetch(context.bucket, operations)
    except ObjectStorageUnavailable as error:
        raise LookupError(str(error)) from error
    if rounded is None:
        raise LookupError(f"the operations of window {epoch}-{first_step} are gone")
    return PackedWindow(rounded, remainders)


def _count_batch(before: IngestCounts, batch: OpBatch, added: AddedBatch) -> IngestCounts:
    if batch.num_group_rows:
        before = replace(before, in_groups=_count_groups(before, batch, added))
    num_ops = batch.columns.num_ops
    if added.verdict == "duplicate":
        return replace(before, duplicate=before.duplicate + num_ops)
    if added.verdict == "conflict":
        sample: dict[str, Any] = {"rank": batch.rank, "batch_seq": batch.batch_seq}
        return replace(before, conflict=before.conflict + num_ops, last_conflict=sample)
    return replace(
        before,
        accepted=before.accepted + num_ops - added.num_late,
        late=before.late + added.num_late,
    )


def _count_groups(before: IngestCounts, batch: OpBatch, added: AddedBatch) -> dict[str, int]:
    if added.verdict == "new":
        new = added.groups._asdict()
    else:
        is_stranger = added.verdict == "stranger"
        new = {"late" if is_stranger else "duplicate": batch.num_group_rows}
    names = ("accepted", "duplicate", "late", "refused")
    return {name: (before.in_groups or {}).get(name, 0) + new.get(name, 0) for name in names}


CHECK_SILENCE_EVERY_S = 5.0
EVICT_AFTER_S = 60.0
TIMEOUT_STEP_SPANS = 3  # a job with long steps may pause for long
MAX_TIMEOUT_RATIO = 12  # an hour, where it is five minutes


# Steps between two reports of a worker that records few of them; MAX_STEP_JUMP of the API is more.
FAR_STEPS = 10_000


class JobStateUnreadable(Exception):
    """The stored state of a job cannot be loaded; its entries are not the cause."""


class RunCache:
    """Runs by job id and epoch."""

    def __init__(self, context: ConsumerContext, shard: int) -> None:
        self._context = context
        self._shard = shard
        self._since_s = context.monotonic()
        self.looks = QueueLooks(self._since_s)
        self._runs: dict[RunKey, LoadedRun] = {}
        self._to_reload: set[RunKey] = set()
        self._unreadable: set[RunKey] = set()
        self.stuck_entries: dict[str, str] = {}  # entries that stay in the queue, and their jobs
        self._next_listen_s = 0.0
        self._listened_s = self._since_s
        self._processed = as_of.Processed(0.0)
        self._held_s: dict[str, float] = {}  # `heard_of_s` of jobs since they are excused
        self.has_listened = False  # just now, and the queue held nothing old

    def to_load(self) -> list[RunKey]:
        """Runs of this shard to load at the start: those with an open window, watched, or stalled.

        Stalled ones, since the rules may have changed meanwhile.
        """
        now_s = self._context.unix_time()
        with self._context.store.read() as conn:
            kept = {*shards.spooled_runs(conn), *runs.watched(conn, now_s=now_s)}
            kept.update(runs.stalled(conn, now_s=now_s))
        return self._of_shard(kept)

    def starting(self) -> list[RunKey]:
        """Runs that have registered and sent nothing so far; empty unless a check is due."""
        if self._context.monotonic() < self._next_listen_s:
            return []
        now_s = self._context.unix_time()
        starting = partial(runs.starting, now_s=now_s)
        return self._of_shard(self._context.read_once("starting runs", starting))

    @property
    def to_reload(self) -> list[RunKey]:
        """Runs that were evicted after an error."""
        return sorted(self._to_reload)

    def get(self, key: RunKey) -> LoadedRun:
        """The run, from the store if it is not in memory.

        Raises:
            JobNotFound: no such run registered.
            JobStateUnreadable: its stored state cannot be loaded.
        """
        if key not in self._runs:
            self._runs[key] = self._loaded(key)
            self._to_reload.discard(key)
        return self._runs[key]

    def look(self) -> None:
        """See what waits in the queue."""
        queue, now_s = self._context.queue, self._context.monotonic()
        newest = queue.newest(self._shard)  # first: what comes in between is not yet known
        self._forget_gone(newest)
        oldest = queue.oldest(self._shard, besides=self.stuck_entries)
        self.looks.look(oldest=oldest, newest=newest, now_s=now_s)

    def _forget_gone(self, newest: str) -> None:
        """Drop entries that a wiped server has lost: no job waits for them, ids may begin again."""
        if not self.stuck_entries:
            return
        oldest = self._context.queue.oldest(self._shard)
        for entry_id in list(self.stuck_entries):
            order = entry_order(entry_id)
            if oldest is None or not entry_order(oldest) <= order <= entry_order(newest):
                del self.stuck_entries[entry_id]

    def heard_of_s(self, job_id: str) -> float:
        """Up to when all data of the job are taken; data that it could not send are not missing."""
        return self._held_s.get(job_id, self.looks.taken_s)

    def due(self) -> list[RunKey]:
        """Runs with a step past its deadline, or with an open window to announce."""
        return [key for key, run in self._runs.items() if self._is_due(key[0], run.assembler)]

    def _is_due(self, job_id: str, assembler: RunAssembler) -> bool:
        deadline_s = assembler.next_deadline_s()
        is_past = deadline_s is not None and deadline_s <= self.heard_of_s(job_id)
        return assembler.has_unreported_steps or is_past

    def evict(self, job_id: str) -> None:
        """Drop a job after an error: its memory may be wrong. The next tick loads it again."""
        for key in [key for key in self._runs if key[0] == job_id]:
            del self._runs[key]
            self._to_reload.add(key)

    def close(self, key: RunKey) -> None:
        """Drop a run whose last window is stored."""
        self._runs.pop(key, None)

    def evict_stalled(self, is_needed: Callable[[str], bool]) -> None:
        """Evict stalled runs that wait for nothing: their state is in the store.

        Runs of jobs that `is_needed` names stay.
        """
        limit_s = self._context.monotonic() - EVICT_AFTER_S
        for key, run in list(self._runs.items()):
            is_quiet = run.saved_silence.stalled_since_s is not None and run.last_used_s < limit_s
            if is_quiet and run.assembler.is_idle and not is_needed(key[0]):
                del self._runs[key]

    @property
    def jobs(self) -> set[str]:
        """Jobs with a run in memory."""
        return {job_id for job_id, _ in self._runs}

    def silent_ranks(self) -> dict[str, dict[RunKey, SilentRanks]]:
        """Silent ranks by job and run; empty unless a check is due, or while the queue lags."""
        now_s = self._context.monotonic()
        self.has_listened = False
        if now_s < self._next_listen_s:
            return {}
        self._next_listen_s = now_s + CHECK_SILENCE_EVERY_S
        listened_s, self._listened_s = self._listened_s, now_s
        if self._runs and not (self.looks.has_caught_up and self.looks.taken_s >= listened_s):
            return {}  # ranks may only seem silent: their data wait since before the last check
        self.has_listened = True
        by_job: dict[str, dict[RunKey, SilentRanks]] = defaultdict(dict)
        self._note_processed()
        for key, run in self._runs.items():
            if not self.is_excused(key):
                by_job[key[0]][key] = self._silence(run, now_s)
        return by_job

    def is_excused(self, key: RunKey) -> bool:
        """Whether workers of the run may have sent what could not be taken until now."""
        run = self._runs.get(key)
        registered_s = 0.0 if run is None else run.rank_watch.registered_unix_s
        return self._processed.is_excused(key[0], registered_s)

    def _note_processed(self) -> None:
        self._processed = self._context.read_once("processed", self._read_processed)
        excused = {key[0] for key in self._runs if self.is_excused(key)}
        self._held_s = {job_id: self.heard_of_s(job_id) for job_id in excused}

    def _read_processed(self, conn: Connection) -> as_of.Processed:
        now_s = self._context.database_time(conn)
        return as_of.read(conn, num_shards=self._context.num_shards, now_s=now_s)

    def note_saved(self, news: Mapping[RunKey, SilentRanks]) -> None:
        """Note that these silent ranks have been saved."""
        for key, silence in news.items():
            if key in self._runs:
                self._runs[key].saved_silence = silence
            ranks, is_stalled = len(silence.silent_ranks), silence.stalled_since_s is not None
            log.info(
                "silent ranks saved", job=key[0], epoch=key[1], ranks=ranks, stalled=is_stalled
            )

    def _of_shard(self, keys: Iterable[RunKey]) -> list[RunKey]:
        num_shards = self._context.num_shards
        return sorted(key for key in keys if shard_of(key[0], num_shards) == self._shard)

    def _loaded(self, key: RunKey) -> LoadedRun:
        try:
            with self._context.store.read() as conn:
                with_longer_limit(conn)
                return load_run(conn, self._context, key)
        except PacelineError:
            raise
        except Exception as error:
            if key not in self._unreadable:  # log once: it is retried again and again
                self._unreadable.add(key)
                log.exception("run cannot be loaded", job=key[0], epoch=key[1])
            raise JobStateUnreadable(f"run {key} cannot be loaded") from error

    def _silence(self, run: LoadedRun, now_s: float) -> SilentRanks:
        unix_s = self._context.unix_time()
        tracker = run.assembler.tracker
        never_seen = tracker.unseen_ranks() if run.rank_watch.has_begun else ()
        silence = run.rank_watch.silent_ranks(now_s, unix_s, self._timeout_s(run), never_seen)
        workers = tracker.workers(silence.silent_ranks)
        silence = silence._replace(silent_workers=tuple(workers.values()))
        if silence.silent_ranks and run.saved_silence.silent_ranks:  # since the first of them
            silence = silence._replace(silent_since_s=run.saved_silence.silent_since_s)
        return silence

    def _timeout_s(self, run: LoadedRun) -> float:
        least_s, longest_s = self._context.silent_after_s, run.assembler.longest_span_s
        if longest_s is not None or run.assembler.closed_through != NO_STEP:
            span_s = TIMEOUT_STEP_SPANS * (longest_s or 0.0)
            return min(max(least_s, span_s), MAX_TIMEOUT_RATIO * least_s)
        # No step has been complete so far, and none given up.
        if run.saved_silence == NONE_SILENT and self._context.monotonic() - self._since_s < least_s:
            return inf  # older registrations may have reached this consumer only now
        # Loading a checkpoint and compiling may take a large job many minutes.
        return max(least_s, self._context.start_within_s)


_MAX_NAMES = 20


def silence_facts(run: LoadedRun, silence: SilentRanks) -> MissingDataFacts:
    """The run's silent ranks as facts for alert rules."""
    tracker, job = run.assembler.tracker, run.assembler.job
    if silence == NONE_SILENT:
        return MissingDataFacts(
            is_starting=not run.rank_watch.has_begun,
            has_unseen_ranks=tracker.has_unseen_ranks,
        )
    hosts, pp_size = tracker.hosts(), job.parallelism.pp_size
    named = silence.silent_workers[:_MAX_NAMES]
    return MissingDataFacts(
        stalled_since_s=silence.stalled_since_s,
        silent_since_s=silence.silent_since_s,
        names=tuple(
            formatting.worker(worker // pp_size, worker % pp_size, hosts, rank)
            for worker, rank in zip_longest(named, silence.silent_ranks[: len(named)])
        ),
        num_silent=len(silence.silent_workers) or len(silence.silent_ranks),
        num_workers=job.parallelism.num_workers,
        num_gpus=job.num_gpus,
        last_step=run.last_step,
    )
