"""Put a consumer together from settings, and run it."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from app.alerts.delivery import Endpoint, make_client
from app.alerts.rules import Rule
from app.consumer.heartbeat import beat, unwatch, watch_turn
from app.consumer.janitor import Janitor
from app.consumer.process import REFRESHES_A_LEASE, Consumer
from app.consumer.sender import Sender
from app.consumer.workplace import Workplace
from app.engine.memory import keep_freed_memory
from app.engine.warm_up import warm_up
from app.errors import StartUpFailed
from app.ingest.assembler import Rules
from app.ingest.durability import refuse
from app.ingest.redis_events import RedisAnnouncer
from app.ingest.redis_queue import RedisReader
from app.settings import Settings
from app.store.durability import weaknesses
from app.store.engine import Store, now_s
from app.store.migrate import is_current
from app.store.retention import Keep
from app.telemetry import set_up_logging

log = structlog.get_logger()


def run(settings: Settings, name: str, stop: threading.Event) -> None:
    """Consume until `stop` is set.

    Raises:
        StartUpFailed: queue, store or webhook cannot be used as they are set up.
    """
    set_up_logging(settings.log_format)
    endpoint = _endpoint(settings)
    keep_freed_memory()
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    with ExitStack() as stack:
        work = _workplace(settings, stack)
        consumer = Consumer(work, name)
        if endpoint is not None:
            client = stack.enter_context(make_client())
            _beside(stack, "sender", Sender(work.store, endpoint, client).run, stop)
        keep = Keep(settings.keep_raw_days, settings.keep_results_days)
        _beside(stack, "janitor", Janitor(work.store, keep).run, stop)
        _beside(stack, "heartbeat", beat, consumer.leases, work.lease_s / REFRESHES_A_LEASE, stop)
        stack.callback(unwatch)
        stack.callback(stop.set)
        log.info("consumer started", name=name)
        consumer.run(stop, alive=watch_turn)


def _beside(stack: ExitStack, name: str, work: Callable[..., None], *args: object) -> None:
    """Do this in a thread; `stack` waits for its end."""
    thread = threading.Thread(target=work, args=args, name=name)
    thread.start()
    stack.callback(thread.join)


def check(settings: Settings) -> None:
    """Returns if queue and store can be used.

    Raises:
        PacelineError: one cannot; the message says what to change.
    """
    _endpoint(settings)
    with ExitStack() as stack:
        work = _workplace(settings, stack)
        for shard in range(settings.shards):
            work.queue.backlog(shard)


def _endpoint(settings: Settings) -> Endpoint | None:
    if settings.webhook_url is None:
        return None
    if settings.webhook_secret is None:
        raise StartUpFailed("alerts are signed: set PACELINE_WEBHOOK_SECRET to a whsec_... too")
    return Endpoint(settings.webhook_url, settings.webhook_secret.get_secret_value())


def _workplace(settings: Settings, stack: ExitStack) -> Workplace:
    if settings.redis_url is None:
        raise StartUpFailed(
            "no event queue: set PACELINE_REDIS_URL, or run all on one machine by 'paceline serve'"
        )
    if not is_current(settings.store_url):
        raise StartUpFailed("the database has other tables than this version: run paceline migrate")
    store = Store(settings.store_url)
    stack.callback(store.close)
    queue = RedisReader(settings.redis_url)
    stack.callback(queue.close)
    found = (*queue.weaknesses(), *weaknesses(store))
    refuse(found, allow_lossy=settings.allow_lossy)
    for sentence in found:
        log.warning("data may be lost, as allowed", reason=sentence)
    announcer = RedisAnnouncer(settings.redis_url)
    stack.callback(announcer.close)
    return Workplace(
        store=store,
        queue=queue,
        announcer=announcer,
        rule=Rule(
            threshold=settings.alert_slowdown,
            clear=settings.alert_clear_slowdown,
            num_windows=settings.alert_windows,
        ),
        rules=Rules(settings.window_steps, settings.step_deadline_s, settings.revise_for_s),
        silent_after_s=settings.silent_after_s,
        num_shards=settings.shards,
        lease_s=settings.lease_s,
        webhook_endpoint=settings.webhook_url,
        public_url=settings.public_url,
        monotonic=time.monotonic,
        unix_time=time.time,
        database_time=now_s,
    )
