"""What a consumer works with: handed in whole, so that tests hand in twins and clocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from app.alerts.rule import Rule
from app.ingest.assembler import Rules
from app.ingest.queue import Announcer, QueueReader
from app.store.engine import Connection, Store


@dataclass(frozen=True, slots=True)
class Workplace:
    """Doors, settings and clocks of one consumer.

    `monotonic` times deadlines on this machine, `database_time` the leases that all share, and
    `unix_time` is written down. `process` is a name that no other process ever has. `usual_rules`
    watch the jobs of projects that have no alert rules of their own; whoever tells people of an
    alert looks at it `group_wait_s` after it has begun or ceased to fire. Who sends nothing for
    `silent_after_s` is silent; before a run's first whole step that takes `start_within_s`, if
    longer.
    """

    store: Store
    queue: QueueReader
    announcer: Announcer
    usual_rules: Sequence[Rule]
    group_wait_s: float
    rules: Rules
    silent_after_s: float
    start_within_s: float
    num_shards: int
    lease_s: float
    monotonic: Callable[[], float]
    unix_time: Callable[[], float]
    database_time: Callable[[Connection], float]
    process: str = field(default_factory=lambda: uuid4().hex)
