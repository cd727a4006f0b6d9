"""The API process: builds `Service`, and serves the application with uvicorn."""

import gc
import resource
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import structlog
import uvicorn
from fastapi import FastAPI
from typing_extensions import override

from app.addresses import is_loopback
from app.api.application import application
from app.api.http.auth import Authenticator
from app.api.http.bodies import ProjectRates
from app.api.http.connection import BoundedHeaders, BurstAcceptor
from app.api.http.limits import FailureLimit
from app.api.http.picture_links import PictureLinkAuth
from app.api.http.request_log import ApiMetrics
from app.api.service.demo_switch import DemoSwitch
from app.api.service.hub import EventHub
from app.api.service.replays import ReplayCache, StepViewCache
from app.api.service.service import (
    GpuPrice,
    PagesUrlReach,
    PublicSettings,
    RegistrationCache,
    Service,
)
from app.api.service.status import LossWarnings, ServiceStatus
from app.diagnosis.warm_up import WarmUp
from app.engine.memory import release_large_blocks
from app.errors import StartUpFailed, Unavailable
from app.ingest.queue import Announcer, Listener, QueueWriter
from app.ingest.redis.admission import GuardedWriter
from app.ingest.redis.events import RedisAnnouncer, RedisListener
from app.ingest.redis.queue import RedisReader
from app.ingest.redis.server_checks import refuse_weaknesses
from app.settings import Settings
from app.store import service_state
from app.store.database import Connection, Store, durability_weaknesses, is_migrated
from app.store.database import now_s as database_now_s
from app.store.disk.forecast import start_recording
from app.store.disk.usage import DiskWatch
from app.telemetry import set_up_logging
from app.watch.service_watch import start_watching

log = structlog.get_logger()

GRACEFUL_SHUTDOWN_S = 5
# Fewer, later collections: p99 under load fell from 28 to 8 ms.
GC_THRESHOLDS = (50_000, 20, 100)


@dataclass(frozen=True, slots=True)
class Connections:
    """Connections of an API process; `close` closes those that the app does not."""

    store: Store
    writer: QueueWriter
    listener: Listener
    announcer: Announcer
    is_migrated: Callable[[], bool]
    close: Callable[[], None]
    disk: DiskWatch = field(default_factory=DiskWatch)


def create_app(
    settings: Settings,
    connections: Connections | None = None,
    *,
    now_s: Callable[[], float] = time.time,
    database_time: Callable[[Connection], float] = database_now_s,
    monotonic: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The HTTP application; with `connections`, over these instead of those of the settings.

    Raises:
        StartUpFailed: a setting is missing.
    """
    if settings.token is None:
        raise StartUpFailed(
            "set PACELINE_TOKEN to pl_ and at least 16 characters that nobody can guess"
        )
    connections = connections or _connect(settings)
    auth = Authenticator(
        settings.token.get_secret_value(),
        connections.store,
        session_s=timedelta(hours=settings.session_hours).total_seconds(),
        now_s=now_s,
        monotonic=monotonic,
    )
    replays = ReplayCache(connections.store, settings.bucket())
    price, transport = settings.gpu_hour_price, settings.transport()
    service = Service(
        store=connections.store,
        writer=connections.writer,
        announcer=connections.announcer,
        hub=EventHub(connections.listener),
        auth=auth,
        picture_links=PictureLinkAuth(connections.store, now_s=now_s, monotonic=monotonic),
        sign_ins=FailureLimit(monotonic),
        share_failures=FailureLimit(monotonic, attempts="links"),
        share_audience=settings.share_links,
        registrations=RegistrationCache(
            connections.store, monotonic=monotonic, revise_for_s=settings.revise_for_s
        ),
        replays=replays,
        step_views=StepViewCache(replays),
        alert_slowdown=settings.alert_slowdown,
        metrics=ApiMetrics(),
        status=ServiceStatus(
            connections.store,
            connections.writer,
            is_migrated=connections.is_migrated,
            num_shards=settings.shards,
            lease_s=settings.lease_s,
            allow_lossy=settings.allow_lossy,
            disk=connections.disk,
            now_s=now_s,
            monotonic=monotonic,
        ),
        loss_warnings=LossWarnings(
            connections.store,
            connections.writer,
            is_allowed=settings.allow_lossy,
            monotonic=monotonic,
        ),
        public_settings=_public_settings(settings),
        demo_switch=DemoSwitch(settings.demo_switch),
        # For addresses of receivers when they are set; this process sends only tests.
        guard=transport.guard,
        mail=transport.mail,
        metrics_top_jobs=settings.metrics_top_jobs,
        max_batch_rows=settings.max_batch_rows,
        gpu_price=None if price is None else GpuPrice(price, settings.currency),
        viewer_url=settings.perfetto_url,
        is_migrated=connections.is_migrated,
        now_s=now_s,
        database_time=database_time,
    )
    return application(
        service,
        allowed_hosts=_host_names(settings),
        max_body_bytes=settings.max_body_bytes,
        rates=ProjectRates(
            requests_per_s=settings.limit_requests_per_s,
            bytes_per_s=settings.limit_bytes_per_s,
            monotonic=monotonic,
        ),
        close=connections.close,
    )


def _public_settings(settings: Settings) -> PublicSettings:
    return PublicSettings(
        rules=settings.default_rules(),
        rules_source="defaults" if settings.alert_rules is None else "file",
        keep=settings.retention,
        pages_url=settings.pages_url,
        pages_url_reach=_pages_url_reach(settings),
        window_steps=settings.window_steps,
        step_deadline_s=settings.step_deadline_s,
        revise_for_s=settings.revise_for_s,
        silent_after_s=settings.silent_after_s,
        session_hours=settings.session_hours,
        max_jobs=settings.limit_jobs,
        consumers_dead_after_s=settings.consumers_dead_after_s or None,
        canary_every_s=settings.canary_every_s or None,
        canary_missing_after_s=settings.canary_missing_after_s,
    )


def _pages_url_reach(settings: Settings) -> PagesUrlReach:
    if settings.public_url is not None:
        return "public"
    return "loopback" if is_loopback(settings.host) else "host"


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    set_up_logging(settings.log_format)
    settings.check_usable()
    _check_certificate(settings)
    _allow_connections()
    release_large_blocks()
    app = create_app(settings)
    _refuse_lossy(settings, app.state.service.store)
    stop = threading.Event()
    WarmUp(stop)
    start_saving_pages_url(app.state.service, settings.pages_url, stop)
    start_recording(app.state.service.store, app.state.service.status.disk, stop)
    start_watching(app.state.service, settings, stop)
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
    server = _Server(config, on_stop=app.state.service.hub.close)
    try:
        server.run()
    finally:
        stop.set()


_RETRY_SAVING_S = 2.0


def start_saving_pages_url(service: Service, url: str, stop: threading.Event) -> None:
    """Save the address of the pages for consumers, in a thread, as soon as the database answers."""

    def save() -> None:
        while not stop.is_set():
            try:
                if service.is_migrated():
                    with service.store.write() as conn:
                        service_state.save_pages_url(conn, url)
                    return
            except Unavailable as error:
                log.info("address not saved yet", reason=str(error))
            stop.wait(_RETRY_SAVING_S)

    threading.Thread(target=save, name="pages-url").start()


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
    """Refuse to start on a queue or store that may lose data; one that is away is not checked."""
    reader = RedisReader(str(settings.redis_url))
    weaknesses: list[str] = []
    for ask in (reader.weaknesses, partial(durability_weaknesses, store)):
        try:
            weaknesses += ask()
        except Unavailable as error:
            log.warning("not there yet", reason=str(error))
    reader.close()
    refuse_weaknesses(weaknesses, allow_lossy=settings.allow_lossy)
    for sentence in weaknesses:
        log.warning("data may be lost, as allowed", reason=sentence)


def _allow_connections() -> None:
    """Raise the limit of open files: a large job keeps one connection per worker."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


# The event loop waits so long for the interpreter wherever a thread computes: Python's own 5 ms at
# each of a push's ten turns were half of the time that pushes took beside three such threads.
_SWITCH_INTERVAL_S = 0.0005


class _Server(uvicorn.Server):
    """Ends event streams before it waits for requests, and tunes the collector at start.

    Accepts connections in bursts, and ends with status 0 when stopped by a signal.
    """

    def __init__(self, config: uvicorn.Config, *, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._acceptor: BurstAcceptor | None = None

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._acceptor = BurstAcceptor(self._new_connection, tls=self.config.ssl)
        self._acceptor.start(listener for server in self.servers for listener in server.sockets)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        if self._acceptor is not None:
            self._acceptor.stop()
        await super().shutdown(sockets)

    def _new_connection(self) -> BoundedHeaders:
        return BoundedHeaders(self.config, self.server_state, self.lifespan.state)


class _Once:
    """Asks until the first True, and caches it."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._was_yes = False

    def __call__(self) -> bool:
        self._was_yes = self._was_yes or self._ask()
        return self._was_yes


def _connect(settings: Settings) -> Connections:
    if settings.redis_url is None:
        raise StartUpFailed("set PACELINE_REDIS_URL, or run paceline serve, which starts a queue")
    store = Store(settings.store_url, keys=settings.secret_keys())
    announcer = RedisAnnouncer(settings.redis_url)
    disk = settings.disk_watch()

    def close() -> None:
        announcer.close()
        store.close()

    return Connections(
        store=store,
        writer=GuardedWriter(
            settings.redis_url,
            settings.shards,
            allow_lossy=settings.allow_lossy,
            wait_replicas=settings.wait_replicas,
            refuse_batches=disk.refuse_batches,
        ),
        listener=RedisListener(settings.redis_url),
        announcer=announcer,
        is_migrated=_Once(lambda: is_migrated(settings.store_url)),
        close=close,
        disk=disk,
    )


def _host_names(settings: Settings) -> tuple[str, ...]:
    # Links in messages name this host, so it has to be answered.
    linked = urlsplit(settings.pages_url).hostname
    return (settings.host, *settings.allowed_hosts, *((linked,) if linked else ()))
