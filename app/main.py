"""The HTTP process: builds what the routes use, and serves."""

import gc
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import structlog
import uvicorn
from fastapi import FastAPI
from typing_extensions import override

from app.alerts.guard.guard import Guard
from app.api.application import Limits, application
from app.api.auth import Access
from app.api.connection import BoundedHeaders
from app.api.failures import FailureLimit
from app.api.hub import Hub
from app.api.in_force import InForce
from app.api.job_state import Thresholds
from app.api.limits import ProjectLimits
from app.api.lossy import Lossy
from app.api.measured import Measured
from app.api.picture_links import PictureLinks
from app.api.price import Price
from app.api.registrations import Registrations
from app.api.replays import Replays
from app.api.service import Service
from app.api.step_views import StepViews
from app.api.watch import Watch
from app.diagnosis.warm_up import warm_up
from app.engine.memory import give_large_memory_back
from app.errors import StartUpFailed, Unavailable
from app.ingest.durability import refuse
from app.ingest.guarded import open_writer
from app.ingest.queue import Announcer, Listener, QueueWriter
from app.ingest.redis_events import RedisAnnouncer, RedisListener
from app.ingest.redis_queue import RedisReader
from app.settings import Settings
from app.store.durability import weaknesses
from app.store.engine import Connection, Store
from app.store.engine import now_s as database_now_s
from app.store.retention import Keep
from app.store.revision import is_current
from app.telemetry import set_up_logging

log = structlog.get_logger()

GRACEFUL_SHUTDOWN_S = 5
# Fewer, later collections: p99 under load fell from 28 to 8 ms.
GC_THRESHOLDS = (50_000, 20, 100)


@dataclass(frozen=True, slots=True)
class Parts:
    """The doors of an API process; `close` frees what the app does not close itself."""

    store: Store
    writer: QueueWriter
    listener: Listener
    announcer: Announcer
    is_migrated: Callable[[], bool]
    close: Callable[[], None]


def create_app(
    settings: Settings,
    parts: Parts | None = None,
    *,
    now_s: Callable[[], float] = time.time,
    database_time: Callable[[Connection], float] = database_now_s,
    monotonic: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The HTTP application; with `parts`, over these instead of what the settings name.

    Raises:
        StartUpFailed: a setting is missing.
    """
    if settings.token is None:
        raise StartUpFailed(
            "set PACELINE_TOKEN to pl_ and at least 16 characters that nobody can guess"
        )
    parts = parts or _parts(settings)
    access = Access(
        settings.token.get_secret_value(),
        parts.store,
        session_s=timedelta(hours=settings.session_hours).total_seconds(),
        now_s=now_s,
        monotonic=monotonic,
    )
    replays = Replays(parts.store)
    service = Service(
        store=parts.store,
        writer=parts.writer,
        announcer=parts.announcer,
        hub=Hub(parts.listener),
        access=access,
        links=PictureLinks(parts.store, now_s=now_s, monotonic=monotonic),
        sign_ins=FailureLimit(monotonic),
        registrations=Registrations(
            parts.store, monotonic=monotonic, revise_for_s=settings.revise_for_s
        ),
        replays=replays,
        step_views=StepViews(replays),
        thresholds=Thresholds(settings.alert_slowdown, settings.silent_after_s),
        measured=Measured(),
        watch=_watch(settings, parts, now_s, monotonic),
        lossy=Lossy(
            parts.store, parts.writer, is_allowed=settings.allow_lossy, monotonic=monotonic
        ),
        in_force=_in_force(settings),
        guard=_guard(settings),
        mail=settings.mail_server(),
        metrics_top_jobs=settings.metrics_top_jobs,
        window_steps=settings.window_steps,
        max_batch_rows=settings.max_batch_rows,
        max_jobs=settings.limit_jobs,
        price=_price(settings),
        viewer_url=settings.perfetto_url,
        is_migrated=parts.is_migrated,
        now_s=now_s,
        database_time=database_time,
    )
    of_project = ProjectLimits(
        requests_per_s=settings.limit_requests_per_s,
        bytes_per_s=settings.limit_bytes_per_s,
        monotonic=monotonic,
    )
    limits = Limits(_host_names(settings), settings.max_body_bytes, of_project)
    return application(service, limits, close=parts.close)


def _watch(
    settings: Settings, parts: Parts, now_s: Callable[[], float], monotonic: Callable[[], float]
) -> Watch:
    return Watch(
        parts.store,
        parts.writer,
        is_migrated=parts.is_migrated,
        num_shards=settings.shards,
        lease_s=settings.lease_s,
        allow_lossy=settings.allow_lossy,
        now_s=now_s,
        monotonic=monotonic,
    )


def _price(settings: Settings) -> Price | None:
    per_gpu_hour = settings.gpu_hour_price
    return None if per_gpu_hour is None else Price(per_gpu_hour, settings.currency)


def _in_force(settings: Settings) -> InForce:
    return InForce(
        rules=settings.usual_rules(),
        rules_source="defaults" if settings.alert_rules is None else "file",
        keep=Keep(settings.keep_raw_days, settings.keep_results_days),
        public_url=settings.public_url,
        window_steps=settings.window_steps,
        step_deadline_s=settings.step_deadline_s,
        revise_for_s=settings.revise_for_s,
        silent_after_s=settings.silent_after_s,
        session_hours=settings.session_hours,
        max_jobs=settings.limit_jobs,
    )


def _guard(settings: Settings) -> Guard:
    """Judges addresses of endpoints when they are given; nothing is sent from this process."""
    return Guard(
        allowed=settings.webhook_allow,
        allows_http=settings.webhook_allow_http,
        ports=frozenset(settings.webhook_ports),
    )


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    set_up_logging(settings.log_format)
    _check_certificate(settings)
    _allow_connections()
    give_large_memory_back()
    app = create_app(settings)
    _refuse_lossy(settings, app.state.service.store)
    # Beside everything else, since a probe must not wait for it.
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        http=BoundedHeaders,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    _Server(config, on_stop=app.state.service.hub.close).run()


def _check_certificate(settings: Settings) -> None:
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise StartUpFailed(
            f"{settings.tls_cert} and {settings.tls_key} cannot be used for TLS: "
            f"{error.strerror or error}"
        ) from error


def _refuse_lossy(settings: Settings, store: Store) -> None:
    """Refuses to start on what is there and would lose data; what is away may come later."""
    reader = RedisReader(str(settings.redis_url))
    found: list[str] = []
    for ask in (reader.weaknesses, partial(weaknesses, store)):
        try:
            found += ask()
        except Unavailable as error:
            log.warning("not there yet", reason=str(error))
    reader.close()
    refuse(found, allow_lossy=settings.allow_lossy)
    for sentence in found:
        log.warning("data may be lost, as allowed", reason=sentence)


def _allow_connections() -> None:
    """A large job keeps a connection open for every worker: take what the system gives."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Server(uvicorn.Server):
    """Ends event streams before it waits for requests to end, and tidies memory at the start.

    Told to stop, it has done what it was told: it ends with status 0, not as killed by the signal.
    """

    def __init__(self, config: uvicorn.Config, *, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)


class _Once:
    """Asks until the answer is yes, and remembers that; probes come every few seconds."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._was_yes = False

    def __call__(self) -> bool:
        self._was_yes = self._was_yes or self._ask()
        return self._was_yes


def _parts(settings: Settings) -> Parts:
    if settings.redis_url is None:
        raise StartUpFailed("set PACELINE_REDIS_URL, or run paceline serve, which starts a queue")
    store = Store(settings.store_url)
    announcer = RedisAnnouncer(settings.redis_url)

    def close() -> None:
        announcer.close()
        store.close()

    return Parts(
        store=store,
        writer=open_writer(
            settings.redis_url,
            settings.shards,
            allow_lossy=settings.allow_lossy,
            wait_replicas=settings.wait_replicas,
        ),
        listener=RedisListener(settings.redis_url),
        announcer=announcer,
        is_migrated=_Once(lambda: is_current(settings.store_url)),
        close=close,
    )


def _host_names(settings: Settings) -> tuple[str, ...]:
    public = urlsplit(settings.public_url or "").hostname
    return (settings.host, *settings.allowed_hosts, *((public,) if public else ()))
