"""Put a consumer together from settings, and run it."""

import threading
import time

import structlog

from app.alerts.rules import Rule
from app.consumer.process import Consumer
from app.consumer.sender import Sender
from app.consumer.warm_up import warm_up
from app.consumer.workplace import Workplace
from app.errors import StartUpFailed
from app.ingest.redis_events import RedisAnnouncer
from app.ingest.redis_queue import RedisReader
from app.settings import Settings
from app.store.engine import Store
from app.store.migrate import is_current
from app.telemetry import set_up_logging

log = structlog.get_logger()


def run(settings: Settings, name: str, stop: threading.Event) -> None:
    """Consume until `stop` is set.

    Raises:
        StartUpFailed: queue or store cannot be used as they are set up.
    """
    set_up_logging(settings.log_format)
    warming = threading.Thread(target=warm_up, name="warm-up", daemon=True)
    warming.start()
    work = _workplace(settings)
    sender = Sender(work.store, settings, stop)
    sender.start()
    log.info("consumer started", name=name)
    try:
        Consumer(work, name).run(stop)
    finally:
        stop.set()
        sender.join(5.0)
        work.queue.close()
        work.store.close()


def check(settings: Settings) -> None:
    """Returns if queue and store can be used.

    Raises:
        PacelineError: one cannot; the message says what to change.
    """
    work = _workplace(settings)
    for shard in range(settings.shards):
        work.queue.backlog(shard)
    work.queue.close()
    work.store.close()


def _workplace(settings: Settings) -> Workplace:
    if settings.redis_url is None:
        raise StartUpFailed(
            "no event queue: set PACELINE_REDIS_URL, or run all on one machine by 'paceline serve'"
        )
    if not is_current(settings.store_url):
        raise StartUpFailed("the database has other tables than this version: run paceline migrate")
    return Workplace(
        store=Store(settings.store_url),
        queue=RedisReader(settings.redis_url),
        announcer=RedisAnnouncer(settings.redis_url),
        rule=Rule(
            threshold=settings.alert_slowdown,
            clear=settings.alert_clear_slowdown,
            num_windows=settings.alert_windows,
        ),
        window_steps=settings.window_steps,
        step_deadline_s=settings.step_deadline_s,
        num_shards=settings.shards,
        lease_s=settings.lease_s,
        webhook_endpoint=settings.webhook_url,
        public_url=settings.public_url,
        monotonic=time.monotonic,
        unix_time=time.time,
    )
