"""`Service`: the state that all routes of one API process share.

`PublicSettings` are the settings that a page may show, without secrets.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from anyio import CapacityLimiter

from app.alerts.guard import SsrfGuard
from app.alerts.rule import Rule
from app.alerts.smtp import MailServer
from app.api.http.auth import Authenticator
from app.api.http.caching import ComputeCache, LookupCache, store_lookup
from app.api.http.limits import ConcurrencyLimit, FailureLimit
from app.api.http.picture_links import PictureLinkAuth
from app.api.http.request_log import ApiMetrics, RefusedJobs
from app.api.service.demo_switch import DemoSwitch
from app.api.service.hub import EventHub
from app.api.service.otlp_buffer import OtlpBodyReader, SpanBuffer, SpanRefusalLog
from app.api.service.replays import ReplayCache, ResultCache, StepViewCache
from app.api.service.status import LossWarnings, ServiceStatus
from app.errors import Conflict, EpochSuperseded
from app.ingest.queue import Announcer, QueueWriter
from app.store import as_of, jobs
from app.store.as_of import Processed
from app.store.database import Connection, Store
from app.store.jobs import JobRecord
from app.store.retention import RetentionLimits
from app.trace.job import job_of

JOB_FRESH_S = 2.0
# The consumers check a batch again before they count it, so this may be long.
JOB_STALE_S = 3600.0
# After one rank has reported the end of the job, the others may still send.
MIN_TAKEN_AFTER_END_S = 600.0


class RegistrationCache(LookupCache[str, JobRecord]):
    """Registered jobs as pushes need them, each looked up once for all workers that push.

    While the database is away, known jobs go on pushing: the event queue keeps their batches. A
    refusal is final for a worker, so it rests on `get_now`. Batches are taken for
    `taken_after_end_s` seconds after a job's end: as long as they can revise a window, and for at
    least `MIN_TAKEN_AFTER_END_S`.
    """

    def __init__(
        self, store: Store, *, monotonic: Callable[[], float], revise_for_s: float = 0.0
    ) -> None:
        super().__init__(
            store_lookup(store, jobs.get),
            fresh_s=JOB_FRESH_S,
            stale_s=JOB_STALE_S,
            monotonic=monotonic,
        )
        self.taken_after_end_s = max(revise_for_s, MIN_TAKEN_AFTER_END_S)

    def check_epoch(self, job: JobRecord, epoch: int, now_s: float) -> None:
        """Return if the job takes batches of this epoch.

        Raises:
            EpochSuperseded: the job is in another epoch.
            Conflict: the job ended more than `taken_after_end_s` ago.
        """
        if epoch != job.epoch:
            raise EpochSuperseded(job.job_id, epoch, job.epoch)
        if job.ended_s is not None and now_s - job.ended_s > self.taken_after_end_s:
            raise Conflict(f"job {job_of(job.job_id)!r} has ended: register its next run first")


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Price of a GPU-hour; the currency's sign stands before the amount."""

    per_gpu_hour: float
    currency: str


# Computing an answer takes at most 1 % of the time, however often it is requested.
TTL_PER_COMPUTE_S = 100.0
MAX_ANSWERS = 256

# People who can open a share link: none, those signed in to the project, or all who have it.
ShareAudience = Literal["off", "signed-in", "anyone"]

# A test waits up to ten seconds for its receiver, in one of the threads that answer requests.
MAX_TESTS_AT_ONCE = 4

RulesSource = Literal["file", "defaults"]
PagesUrlReach = Literal["public", "host", "loopback"]


@dataclass(frozen=True, slots=True)
class PublicSettings:
    """Settings of this process; the consumers must have the same.

    `rules` apply to projects without rules of their own. `pages_url` is the address of the pages,
    for links in messages: `public` where the operator has set it, else where this process listens,
    which other machines may reach (`host`) or not (`loopback`). Without `canary_every_s` there is
    no canary; without `consumers_dead_after_s` receivers are not told that consumers are dead.
    """

    rules: Sequence[Rule]
    rules_source: RulesSource
    keep: RetentionLimits
    pages_url: str
    pages_url_reach: PagesUrlReach
    window_steps: int
    step_deadline_s: float
    revise_for_s: float
    silent_after_s: float
    session_hours: float
    max_jobs: int
    consumers_dead_after_s: float | None
    canary_every_s: float | None
    canary_missing_after_s: float


@dataclass(frozen=True, slots=True)
class Service:
    """Connections, caches, limits and clocks of one API process; both clocks give Unix time.

    `database_time` is for timers that processes share: silences and deliveries.
    """

    store: Store
    writer: QueueWriter
    announcer: Announcer
    hub: EventHub
    auth: Authenticator
    picture_links: PictureLinkAuth
    sign_ins: FailureLimit
    share_failures: FailureLimit
    share_audience: ShareAudience
    registrations: RegistrationCache
    replays: ReplayCache
    alert_slowdown: float  # from which on a job is straggling
    metrics: ApiMetrics
    status: ServiceStatus
    loss_warnings: LossWarnings
    public_settings: PublicSettings
    demo_switch: DemoSwitch
    guard: SsrfGuard
    mail: MailServer | None
    metrics_top_jobs: int
    max_batch_rows: int
    gpu_price: GpuPrice | None
    step_views: StepViewCache
    viewer_url: str
    is_migrated: Callable[[], bool]
    now_s: Callable[[], float]
    database_time: Callable[[Connection], float]
    results: ResultCache = field(default_factory=ResultCache)
    answers: ComputeCache[Hashable, Any] = field(
        default_factory=lambda: ComputeCache(
            max_size=MAX_ANSWERS, ttl_per_compute_s=TTL_PER_COMPUTE_S
        )
    )
    # Of unsaved receivers, at the same time.
    test_sends: ConcurrencyLimit = field(
        default_factory=lambda: ConcurrencyLimit(
            MAX_TESTS_AT_ONCE, "other receivers are being tested: try again"
        )
    )
    # /metrics has no place of its own, and its text of 1,000 jobs takes a while.
    metrics_threads: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    metrics_texts: ComputeCache[Hashable, bytes] = field(
        default_factory=lambda: ComputeCache(max_size=16, idle_s=5.0)
    )
    span_buffer: SpanBuffer = field(default_factory=SpanBuffer)
    span_bodies: OtlpBodyReader = field(default_factory=OtlpBodyReader)
    span_refusals: SpanRefusalLog = field(default_factory=SpanRefusalLog)
    refused_jobs: RefusedJobs = field(default_factory=RefusedJobs)

    def announce_job(self, job_id: str) -> None:
        """Tell the pages that something about this job has changed."""
        self.announcer.announce({"event": "job", "job_id": job_id})

    def job_changed(self, job_id: str) -> None:
        """Look the job's registration up next time, and tell the pages; from any thread."""
        self.registrations.forget(job_id)
        self.announce_job(job_id)

    def processed(self, conn: Connection) -> Processed:
        """Up to when what workers send is processed."""
        return as_of.read(conn, num_shards=self.status.num_shards, now_s=self.database_time(conn))
