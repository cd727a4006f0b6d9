"""What the routes work with, handed in whole."""

from collections.abc import Callable
from dataclasses import dataclass

from app.api.auth import Access
from app.api.failures import FailureLimit
from app.api.hub import Hub
from app.api.job_state import Thresholds
from app.api.lossy import Lossy
from app.api.measured import Measured
from app.api.registrations import Registrations
from app.api.replays import Replays
from app.api.watch import Watch
from app.ingest.queue import Announcer, QueueWriter
from app.store.engine import Store


@dataclass(frozen=True, slots=True)
class Service:
    """Doors, limits and the clock of one API process; `now_s` is Unix time."""

    store: Store
    writer: QueueWriter
    announcer: Announcer
    hub: Hub
    access: Access
    sign_ins: FailureLimit
    registrations: Registrations
    replays: Replays
    thresholds: Thresholds
    measured: Measured
    watch: Watch
    lossy: Lossy
    window_steps: int
    max_batch_rows: int
    max_jobs: int
    is_migrated: Callable[[], bool]
    now_s: Callable[[], float]
