"""`Service`: the state that all routes of one API process share.

`PublicSettings` are the settings that a page may show, without secrets.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from anyio import CapacityLimiter

from app.alerts.guard.guard import SsrfGuard
from app.alerts.rule import Rule
from app.alerts.smtp import MailServer
from app.api.http.auth import Authenticator
from app.api.http.caching import ComputeCache
from app.api.http.limits import ConcurrencyLimit, FailureLimit
from app.api.http.picture_links import PictureLinkAuth
from app.api.http.refused_jobs import RefusedJobs
from app.api.http.request_log import ApiMetrics
from app.api.service.demo_switch import DemoSwitch
from app.api.service.hub import EventHub
from app.api.service.job_state import StateThresholds
from app.api.service.otlp_buffer import OtlpBodyReader, SpanBuffer, SpanRefusalLog
from app.api.service.registrations import RegistrationCache
from app.api.service.replays import ReplayCache, StepViewCache
from app.api.service.results import ResultCache
from app.api.service.status import LossWarnings, ServiceStatus
from app.ingest.queue import Announcer, QueueWriter
from app.store import as_of
from app.store.as_of import Processed
from app.store.database import Connection, Store
from app.store.retention import RetentionLimits


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Price of a GPU-hour; the currency's sign stands before the amount."""

    per_gpu_hour: float
    currency: str


# Computing an answer takes at most 1 % of the time, however often it is requested.
TTL_PER_COMPUTE_S = 100.0
MAX_ANSWERS = 256


def cost_aware_cache(
    monotonic: Callable[[], float] = time.monotonic,
) -> ComputeCache[Hashable, Any]:
    """A cache whose TTL is `TTL_PER_COMPUTE_S` times the compute time."""
    return ComputeCache(
        max_size=MAX_ANSWERS, ttl_per_compute_s=TTL_PER_COMPUTE_S, monotonic=monotonic
    )


# Who can open a share link: nobody, who is signed in to the project, or anyone who has it.
ShareAudience = Literal["off", "signed-in", "anyone"]

# A test waits up to ten seconds for its receiver, in one of the threads that answer requests.
MAX_TESTS_AT_ONCE = 4


def test_send_limit() -> ConcurrencyLimit:
    """The limit of tests of unsaved receivers that are sent at the same time."""
    return ConcurrencyLimit(MAX_TESTS_AT_ONCE, "other receivers are being tested: try again")


RulesSource = Literal["file", "defaults"]
PagesUrlReach = Literal["public", "host", "loopback"]


@dataclass(frozen=True, slots=True)
class PublicSettings:
    """Settings of this process; the consumers must have the same.

    `rules` apply to projects without rules of their own. `pages_url` is the address of the pages,
    for links in messages: `public` where the operator has set it, else where this process listens,
    which other machines may reach (`host`) or not (`loopback`). Without `canary_every_s` there is
    no canary; without `consumers_dead_after_s` nobody is told that consumers are dead.
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
    thresholds: StateThresholds
    metrics: ApiMetrics
    status: ServiceStatus
    loss_warnings: LossWarnings
    public_settings: PublicSettings
    demo_switch: DemoSwitch
    guard: SsrfGuard
    mail: MailServer | None
    metrics_top_jobs: int
    window_steps: int
    max_batch_rows: int
    max_jobs: int
    gpu_price: GpuPrice | None
    step_views: StepViewCache
    viewer_url: str
    is_migrated: Callable[[], bool]
    now_s: Callable[[], float]
    database_time: Callable[[Connection], float]
    results: ResultCache = field(default_factory=ResultCache)
    answers: ComputeCache[Hashable, Any] = field(default_factory=cost_aware_cache)
    test_sends: ConcurrencyLimit = field(default_factory=test_send_limit)
    # /metrics has no place of its own, and its text of 1,000 jobs takes a while.
    metrics_threads: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    metrics_texts: ComputeCache[Hashable, bytes] = field(
        default_factory=lambda: ComputeCache(max_size=16, idle_s=5.0)
    )
    span_buffer: SpanBuffer = field(default_factory=SpanBuffer)
    span_bodies: OtlpBodyReader = field(default_factory=OtlpBodyReader)
    span_refusals: SpanRefusalLog = field(default_factory=SpanRefusalLog)
    refused_jobs: RefusedJobs = field(default_factory=RefusedJobs)

    def processed(self, conn: Connection) -> Processed:
        """Up to when what workers send is processed."""
        now_s = self.database_time(conn)
        return as_of.read(conn, num_shards=self.status.num_shards, now_s=now_s)
