"""Put a consumer together from settings, and run it."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from app.consumer import telling
from app.consumer.cordoner import Cordoner
from app.consumer.desk import Desk
from app.consumer.dispatcher import Dispatcher
from app.consumer.heartbeat import beat, unwatch, watch_turn
from app.consumer.janitor import Janitor
from app.consumer.patience import Patience
from app.consumer.process import REFRESHES_A_LEASE, Consumer
from app.consumer.sender import Sender
from app.consumer.workplace import Workplace
from app.diagnosis.warm_up import warm_up
from app.engine.memory import keep_freed_memory
from app.errors import StartUpFailed, Unavailable
from app.ingest.assembler import Rules
from app.ingest.durability import refuse
from app.ingest.redis_events import RedisAnnouncer
from app.ingest.redis_queue import RedisReader
from app.settings import Settings
from app.store import endpoints
from app.store.durability import weaknesses
from app.store.engine import Store, now_s
from app.store.retention import Keep
from app.store.revision import is_current
from app.telemetry import set_up_logging

log = structlog.get_logger()


def run(settings: Settings, name: str, stop: threading.Event) -> None:
    """Consume until `stop` is set; a queue or store that is away is waited for.

    Raises:
        StartUpFailed: queue, store or webhook cannot be used as they are set up.
    """
    set_up_logging(settings.log_format)
    _check_telling(settings)
    keep_freed_memory()
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    with ExitStack() as stack:
        work = _patient_workplace(settings, stack, stop)
        if work is None:
            return
        consumer = Consumer(work, name)
        _tell(stack, settings, work, stop)
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
    _check_telling(settings)
    with ExitStack() as stack:
        work = _workplace(settings, stack)
        for shard in range(settings.shards):
            work.queue.backlog(shard)


def _check_telling(settings: Settings) -> None:
    telling.settings_endpoint(settings)
    telling.transport(settings)
    telling.hook(settings)


def _put_settings_endpoint(settings: Settings, work: Workplace) -> None:
    with work.store.write() as conn:
        endpoints.put_settings_endpoint(conn, telling.settings_endpoint(settings))


def _tell(stack: ExitStack, settings: Settings, work: Workplace, stop: threading.Event) -> None:
    """Plan and send notices in threads of their own: no receiver slows an analysis down."""
    desk = telling.desk(settings, work.store, work.usual_rules)
    sender = Sender(desk)
    cordoner = _cordoner(stack, desk, work, stop)
    _beside(stack, "sender", sender.run, stop)
    _beside(stack, "dispatcher", Dispatcher(desk, cordoner, sender.nudge).run, stop)


def _cordoner(
    stack: ExitStack, desk: Desk, work: Workplace, stop: threading.Event
) -> Cordoner | None:
    if desk.hook is None:
        return None
    cordoner = Cordoner(desk.store, desk.hook, desk.transport.of_operator, work.unix_time)
    _beside(stack, "cordoner", cordoner.run, stop)
    return cordoner


def _patient_workplace(
    settings: Settings, stack: ExitStack, stop: threading.Event
) -> Workplace | None:
    """Once queue and store answer; None if `stop` is set before."""
    patience = Patience(stop)
    while not stop.is_set():
        with ExitStack() as attempt:
            try:
                work = _workplace(settings, attempt)
                _put_settings_endpoint(settings, work)
            except Unavailable as error:
                patience.wait(error)
            else:
                stack.push(attempt.pop_all())
                return work
    return None


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
        usual_rules=settings.usual_rules(),
        group_wait_s=settings.alert_group_wait_s,
        rules=Rules(settings.window_steps, settings.step_deadline_s, settings.revise_for_s),
        silent_after_s=settings.silent_after_s,
        start_within_s=settings.start_within_s,
        num_shards=settings.shards,
        lease_s=settings.lease_s,
        monotonic=time.monotonic,
        unix_time=time.time,
        database_time=now_s,
    )
