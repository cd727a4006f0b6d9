"""Dependencies of a consumer, and of its dispatcher and sender.

They are passed in whole, so that tests can pass twins and clocks.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from app.alerts.cordon import CordonHook
from app.alerts.planning import NotificationTiming
from app.alerts.rule import Rule
from app.alerts.sending import Transport
from app.ingest.assembly.assembler import WindowRules
from app.ingest.queue import Announcer, QueueReader
from app.store import service_state
from app.store.database import Connection, Store, now_s
from app.store.disk.usage import DiskWatch
from app.store.objects.bucket import Bucket

AnswerT = TypeVar("AnswerT")

# Of the processor, or of nothing at all (`watchdog.py`). The longest legitimate work without
# progress, closing a window of 16 million operations, takes a third of this.
MAX_WITHOUT_PROGRESS_S = 120.0


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """Dependencies of one consumer.

    `monotonic` times deadlines on this machine, `database_time` the leases that all processes
    share, and `unix_time` the times that are saved. `process` is a name that no other process ever
    has. `disk` says which data are still stored.
    `default_rules` are for projects without alert rules of their own. The dispatcher looks at an
    alert group `group_wait_s` after an alert began or ceased to fire. A rank without batches for
    `silent_after_s` is silent; before a run's first complete step, `start_within_s` if longer.
    `bucket` has the operations that left the database; None where none do. `note_progress` is
    called before each job's part of a turn: that takes seconds, a turn of many jobs minutes.
    `wake_dispatcher` is called when an alert group was woken, and `shared` has the answers that all
    shards read alike.
    """

    store: Store
    queue: QueueReader
    announcer: Announcer
    default_rules: Sequence[Rule]
    group_wait_s: float
    assembler_rules: WindowRules
    silent_after_s: float
    start_within_s: float
    num_shards: int
    lease_s: float
    monotonic: Callable[[], float]
    unix_time: Callable[[], float]
    database_time: Callable[[Connection], float]
    disk: DiskWatch = field(default_factory=DiskWatch)
    bucket: Bucket | None = None
    process: str = field(default_factory=lambda: uuid4().hex)
    note_progress: Callable[[], None] = lambda: None
    wake_dispatcher: Callable[[], None] = lambda: None
    shared: "SharedReads" = field(default_factory=lambda: SharedReads())

    def read_once(self, name: str, question: Callable[[Connection], AnswerT]) -> AnswerT:
        """The answer of the store, which all shards of a round of ticks share."""
        answers = {} if self.shared.answers is None else self.shared.answers
        if name not in answers:
            with self.store.read() as conn:
                answers[name] = question(conn)
        answer: AnswerT = answers[name]
        return answer


class SharedReads:
    """Answers that the shards of one consumer read once a round of their ticks, for all of them."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] | None = None  # by name; None outside of a round

    @contextmanager
    def round(self) -> Iterator[None]:
        """Keep answers for the length of the block."""
        self.answers = {}
        try:
            yield
        finally:
            self.answers = None


@dataclass(frozen=True, slots=True)
class NotifyContext:
    """Dependencies of dispatcher and sender.

    `default_rules` are for projects without rules of their own. `base_url` is the address of the
    pages in the consumer's own settings, None if not set: then `pages_url` reads it. `has_pictures`
    says whether receivers can fetch charts from there; `hook` is None without cordons. All timers
    (due, lease, silence) are in `database_time`, which all processes share. Messages wait while one
    of `num_shards` is behind that has their job.
    """

    store: Store
    transport: Transport
    default_rules: Sequence[Rule]
    timing: NotificationTiming = field(default_factory=NotificationTiming)
    base_url: str | None = None
    has_pictures: bool = False
    hook: CordonHook | None = None
    num_shards: int = 0
    database_time: Callable[[Connection], float] = now_s
    # Spreads retries over time; need not be secret.
    rng: random.Random = field(default_factory=random.Random)

    def pages_url(self, conn: Connection) -> str | None:
        """Address of the pages for links: `base_url`, else the one that the API saved, if any."""
        return self.base_url or service_state.find_pages_url(conn)
