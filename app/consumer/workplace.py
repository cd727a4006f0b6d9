"""What a consumer works with: handed in whole, so that tests hand in twins and clocks."""

from collections.abc import Callable
from dataclasses import dataclass

from app.alerts.rules import Rule
from app.ingest.queue import Announcer, QueueReader
from app.store.engine import Store


@dataclass(frozen=True, slots=True)
class Workplace:
    """Doors, settings and clocks of one consumer.

    `monotonic` times deadlines and leases on this machine, `unix_time` is written down.
    """

    store: Store
    queue: QueueReader
    announcer: Announcer
    rule: Rule
    window_steps: int
    step_deadline_s: float
    num_shards: int
    lease_s: float
    webhook_endpoint: str | None
    public_url: str | None
    monotonic: Callable[[], float]
    unix_time: Callable[[], float]
