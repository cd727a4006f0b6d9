"""A consumer with a queue in memory, a real store, and clocks that tests advance."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from msgspec import structs
from sqlalchemy import select
from typing_extensions import override

from app.alerts.rule import Rule as AlertRule
from app.alerts.rule import default_rules
from app.consumer.context import ConsumerContext
from app.consumer.loop import Consumer
from app.consumer.shard import ShardWork
from app.ingest.assembly.assembler import RunState, WindowRules, unpack_spool
from app.ingest.batch import OpBatch
from app.ingest.queue import Announcer, Entry, EventMessage
from app.ingest.wire import codec
from app.store import runs, shards
from app.store.database import Connection, Store
from app.store.runs import Registration
from app.store.tables import metadata
from app.store.tables import shards as shards_table
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, OpTypes
from tests.e2e.producers import batch_of
from tests.ingest.memory_queue import MemoryQueue, MemoryReader

LEASE_S = 15.0
DEADLINE_S = 30.0
# Leases are not results, and message ids are random.
_PASSING_TABLES = {"shards", "consumers"}
_PASSING_COLUMNS = {
    *("registered_s", "ended_s", "superseded_s", "last_data_s", "updated_s", "at_s"),
    *("delivery_id", "created_s", "next_at_s", "payload"),
    *("fix_id", "predicted_s", "renewed_s"),
}


def slowdown_rules(windows: int, **given: Any) -> list[AlertRule]:
    """The default slowdown rule without waiting times."""
    known = {"for_s": 0.0, "keep_firing_s": 0.0} | given
    return [rule for rule in default_rules(windows=windows, **known) if rule.on == "slowdown"]


class Crash(BaseException):
    """The process ends here, as by kill -9."""


@dataclass
class Clock:
    """A clock that moves only when set."""

    now_s: float

    def __call__(self) -> float:
        return self.now_s


class CrashPoints:
    """Records the points passed, and raises an error at one of them."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self._raises_at: int | None = None
        self._error: BaseException = Crash()

    def raise_at(self, at: int, error: BaseException) -> None:
        """Raise the error once, at point number `at` (from 0)."""
        self.passed.clear()
        self._raises_at, self._error = at, error

    def reach(self, point: str) -> None:
        """Record the point; raise if it is the chosen one."""
        self.passed.append(point)
        if len(self.passed) - 1 == self._raises_at:
            raise self._error


class CrashingStore(Store):
    """A store that can fail just before and just after each commit."""

    crash_points: CrashPoints

    @override
    @contextmanager
    def write(self) -> Iterator[Connection]:
        with super().write() as conn:
            yield conn
            self.crash_points.reach("before commit")
        self.crash_points.reach("after commit")


class CrashingReader(MemoryReader):
    """A queue reader that never waits, and can fail around each call."""

    def __init__(self, queue: MemoryQueue, crash_points: CrashPoints) -> None:
        super().__init__(queue)
        self._crash_points = crash_points

    @override
    def read(
        self, shards: Sequence[int], consumer: str, *, count: int, block_s: float
    ) -> list[Entry]:
        entries = super().read(shards, consumer, count=count, block_s=0.0)
        self._crash_points.reach("after read")
        return entries

    @override
    def done(self, shard: int, entry_ids: Sequence[str]) -> None:
        self._crash_points.reach("before done")
        super().done(shard, entry_ids)
        self._crash_points.reach("after done")


@dataclass
class RecordedAnnouncements(Announcer):
    """Records what was announced."""

    messages: list[EventMessage] = field(default_factory=list)

    @override
    def announce(self, message: EventMessage) -> None:
        self.messages.append(message)


class Script(threading.Event):
    """A stop signal that advances the clocks instead of waiting.

    Each `is_set` runs the next action; it is set after the last one.
    """

    def __init__(self, twin: "ConsumerTwin", actions: Iterable[Callable[[], Any]]) -> None:
        super().__init__()
        self._twin = twin
        self._actions = iter(actions)

    @override
    def is_set(self) -> bool:
        action = next(self._actions, None)
        if action is not None:
            action()
            self._twin.pass_time(1.0)
        return action is None

    @override
    def wait(self, timeout: float | None = None) -> bool:
        self._twin.pass_time(timeout or 0.0)
        return False


class ConsumerTwin:
    """Store, queue and clocks shared by consumers, and jobs that push to them."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.clock, self.unix_clock = Clock(1000.0), Clock(1.7e9)
        self.crash_points = CrashPoints()
        num_shards = settings.get("num_shards", 1)
        self.queue = MemoryQueue(num_shards, clock_s=self.clock)
        self.store = CrashingStore(url)
        self.store.crash_points = self.crash_points
        self.announced = RecordedAnnouncements()
        values = {
            "store": self.store,
            "queue": CrashingReader(self.queue, self.crash_points),
            "announcer": self.announced,
            "default_rules": slowdown_rules(3),
            "group_wait_s": 1.0,
            "assembler_rules": WindowRules(settings.pop("window_steps", 3), DEADLINE_S),
            "silent_after_s": 300.0,
            "start_within_s": 1800.0,
            "num_shards": num_shards,
            "lease_s": LEASE_S,
            "monotonic": self.clock,
            "unix_time": self.unix_clock,
            "database_time": lambda _conn: self.unix_clock(),
        }
        self.context = ConsumerContext(**values | settings)

    def pass_time(self, seconds: float) -> None:
        """Advance both clocks."""
        self.clock.now_s += seconds
        self.unix_clock.now_s += seconds

    def register(
        self,
        job_id: str,
        sizes: Parallelism,
        run_key: str = "run-1",
        op_types: OpTypes = BUILT_IN,
        labels: dict[str, str] | None = None,
    ) -> int:
        """Register a run; return its epoch."""
        num_gpus = sizes.world_size
        registration = Registration(job_id, sizes, num_gpus, None, labels or {}, run_key, op_types)
        with Store.write(self.store) as conn:
            return runs.register(conn, job_id, registration, now_s=self.unix_clock()).epoch

    def end(self, job_id: str) -> None:
        """End the job."""
        with Store.write(self.store) as conn:
            runs.end(conn, job_id, now_s=self.unix_clock())

    def append(self, job_id: str, *batches: OpBatch) -> None:
        """Acknowledge batches, as the API does."""
        for batch in batches:
            self.append_bytes(job_id, codec.encode(batch))

    def append_bytes(self, job_id: str, body: bytes) -> None:
        """Acknowledge a body without checking it."""
        asyncio.run(self.queue.writer.append(job_id, body))

    def push(self, job_id: str, made: SimulatedJob, *steps: int, epoch: int = 1) -> None:
        """Acknowledge whole steps of a job."""
        for step in steps:
            self.append(job_id, *step_batches(made, step, epoch))

    def consumer(self, name: str = "consumer-0") -> Consumer:
        """A new consumer process."""
        return Consumer(replace(self.context, process=uuid4().hex), name)

    def turns(self, *consumers: Consumer, num_turns: int = 3, each_s: float = 1.0) -> None:
        """Run turns of each consumer; the default suffices to read, store and close a run."""
        never = Script(self, ())
        for _ in range(num_turns):
            for consumer in consumers:
                consumer.turn(never)
            self.pass_time(each_s)

    def shard_work(self, shard: int = 0, owner: str = "consumer-0") -> ShardWork:
        """Work on one shard under a new fence; the earlier owner loses its lease."""
        self.pass_time(2 * LEASE_S)
        now_s = self.unix_clock()
        with Store.write(self.store) as conn:
            fence = shards.acquire(conn, shard, owner, now_s=now_s, lease_s=LEASE_S)
        assert fence is not None
        return ShardWork(self.context, shard, owner, fence)

    def entries(self, shard: int = 0) -> list[Entry]:
        """Read new entries of the queue."""
        return self.context.queue.read([shard], "consumer-0", count=1000, block_s=0.0)

    def owners(self) -> list[str | None]:
        """Owner of each shard."""
        with self.store.read() as conn:
            query = select(shards_table.c.owner).order_by(shards_table.c.shard)
            return list(conn.execute(query).scalars())

    def known(self) -> dict[str, list[tuple[Any, ...]]]:
        """All stored results, without random ids and times of writing."""
        known = {
            table.name: self.rows(table.name)
            for table in metadata.sorted_tables
            if table.name not in _PASSING_TABLES
        }
        # Revisions of an open window depend on how much was queued behind it.
        known["windows"] = [_unnumbered(row) for row in self.windows(*_WINDOW_COLUMNS)]
        known["cursors"] = [(*key, _sorted(blob)) for *key, blob in known["cursors"]]
        known["window_briefs"] = [
            (*key, structs.replace(brief, onset_at_s=None))
            for *key, brief in known["window_briefs"]
        ]
        known["fixes"].sort(key=lambda row: str(row[:2]))  # their ids are random
        # Numbers of turns and duplicates depend on retries.
        known["spool"] = [(*key, unpack_spool(blob)) for *key, _, _, blob in known["spool"]]
        known["ingest_counts"] = self.rows("ingest_counts", "job_id", "epoch", "accepted", "late")
        return known

    def rows(self, table_name: str, *names: str) -> list[tuple[Any, ...]]:
        """Rows of a table in key order; these columns, or all lasting ones."""
        table = metadata.tables[table_name]
        kept = names or [column.name for column in table.c if column.name not in _PASSING_COLUMNS]
        order = list(table.primary_key)
        with self.store.read() as conn:
            query = select(*(table.c[name] for name in kept)).order_by(*order)
            return [tuple(row) for row in conn.execute(query)]

    def windows(self, *names: str) -> list[tuple[Any, ...]]:
        """These columns of all windows, oldest first."""
        return self.rows("windows", *names)


_WINDOW_COLUMNS = (
    *("job_id", "epoch", "first_step", "last_step", "state", "num_steps", "num_ops", "slowdown"),
    *("verdict", "per_step", "trace", "result"),
)


def _unnumbered(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A window without its revision number."""
    *others, result = row
    unnumbered = structs.replace(result.window, revision=None)
    return (*others, structs.replace(result, window=unnumbered))


def _sorted(blob: bytes) -> RunState:
    """The state of a run, its cursors ordered by rank."""
    state = RunState.read(blob)
    state.cursors.sort(key=lambda cursor: cursor.rank)
    state.turn = state.revision = 0
    return state


def step_batches(made: SimulatedJob, step: int, epoch: int = 1) -> list[OpBatch]:
    """One batch per worker with the whole step."""
    sizes, trace = made.parallelism, made.make([step])
    return [
        batch_of(trace, epoch, dp_rank, stage, step)
        for dp_rank in range(sizes.dp_size)
        for stage in range(sizes.pp_size)
    ]
