"""What the routes work with, handed in whole."""

from collections.abc import Callable
from dataclasses import dataclass, field

from app.alerts.guard.guard import Guard
from app.alerts.smtp import MailServer
from app.api.auth import Access
from app.api.failures import FailureLimit
from app.api.held_spans import HeldSpans
from app.api.hub import Hub
from app.api.in_force import InForce
from app.api.job_state import Thresholds
from app.api.kept import Kept
from app.api.lossy import Lossy
from app.api.measured import Measured
from app.api.otlp_body import BodyReader
from app.api.picture_links import PictureLinks
from app.api.price import Price
from app.api.registrations import Registrations
from app.api.replays import Replays
from app.api.results import Results
from app.api.span_refusals import SpanRefusals
from app.api.step_views import StepViews
from app.api.watch import Watch
from app.ingest.queue import Announcer, QueueWriter
from app.store.engine import Connection, Store


@dataclass(frozen=True, slots=True)
class Service:
    """Doors, limits and clocks of one API process; both say Unix time.

    `database_time` is that of the timers that many processes share: silences, what is to be sent.
    """

    store: Store
    writer: QueueWriter
    announcer: Announcer
    hub: Hub
    access: Access
    links: PictureLinks
    sign_ins: FailureLimit
    registrations: Registrations
    replays: Replays
    thresholds: Thresholds
    measured: Measured
    watch: Watch
    lossy: Lossy
    in_force: InForce
    guard: Guard
    mail: MailServer | None
    metrics_top_jobs: int
    window_steps: int
    max_batch_rows: int
    max_jobs: int
    price: Price | None
    step_views: StepViews
    viewer_url: str
    is_migrated: Callable[[], bool]
    now_s: Callable[[], float]
    database_time: Callable[[Connection], float]
    results: Results = field(default_factory=Results)
    kept: Kept = field(default_factory=Kept)
    spans: HeldSpans = field(default_factory=HeldSpans)
    span_bodies: BodyReader = field(default_factory=BodyReader)
    span_refusals: SpanRefusals = field(default_factory=SpanRefusals)
