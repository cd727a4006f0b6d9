"""What a consumer works with: handed in whole, so that tests hand in twins and clocks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from app.alerts.rules import Rule
from app.ingest.assembler import Rules
from app.ingest.queue import Announcer, QueueReader
from app.store.engine import Connection, Store


@dataclass(frozen=True, slots=True)
class Workplace:
    """Doors, settings and clocks of one consumer.

    `monotonic` times deadlines on this machine, `database_time` the leases that all share, and
    `unix_time` is written down. `process` is a name that no other process ever has.
    """

    store: Store
    queue: QueueReader
    announcer: Announcer
    rule: Rule
    rules: Rules
    silent_after_s: float
    num_shards: int
    lease_s: float
    webhook_endpoint: str | None
    public_url: str | None
    monotonic: Callable[[], float]
    unix_time: Callable[[], float]
    database_time: Callable[[Connection], float]
    process: str = field(default_factory=lambda: uuid4().hex)
