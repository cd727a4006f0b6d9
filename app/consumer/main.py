"""Build a consumer from settings, and run it with its threads."""

import gc
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import structlog

from app.alerts.planning import NotificationTiming
from app.alerts.rule import Rule
from app.charts.report.png import is_png_available
from app.consumer.context import ConsumerContext, NotifyContext
from app.consumer.cordoner import Cordoner
from app.consumer.dispatcher import Dispatcher
from app.consumer.janitor import Janitor
from app.consumer.loop import REFRESHES_A_LEASE, Backoff, Consumer, keep_renewing
from app.consumer.sender import OutboxSender
from app.consumer.watchdog import Watchdog
from app.diagnosis.warm_up import WarmUp
from app.engine.memory import keep_freed_memory
from app.errors import StartUpFailed, Unavailable
from app.ingest.assembly.assembler import WindowRules
from app.ingest.redis.events import RedisAnnouncer
from app.ingest.redis.queue import RedisReader
from app.ingest.redis.server_checks import refuse_weaknesses
from app.settings import Settings
from app.store.alerting import receivers
from app.store.credentials import resealing
from app.store.database import Store, durability_weaknesses, is_migrated, now_s
from app.store.disk.forecast import DiskRecorder
from app.store.objects.moves import Mover
from app.store.shrinking.thinning import ThinningDays
from app.telemetry import set_up_logging

log = structlog.get_logger()

_MAX_LABEL = 200  # the tables hold 256 characters
_COMPILED_WITHIN_S = 120.0  # six times what two cores take, and twice what half a one does


def run(
    settings: Settings, name: str, stop: threading.Event, *, identity: str | None = None
) -> None:
    """Consume until `stop` is set; waits while the queue or the store is unavailable.

    The `name` is a label. Leases belong to the `identity`, by default one of this process alone:
    two consumers with one would take shards from each other without end.

    Raises:
        StartUpFailed: the settings of queue, store or webhook cannot be used.
    """
    set_up_logging(settings.log_format)
    settings.check_usable()
    keep_freed_memory()
    warming_up = WarmUp(stop)
    with ExitStack() as stack:
        context = _wait_for_context(settings, stack, stop)
        if context is None:
            return
        owner = f"{name[:_MAX_LABEL]}/{identity or context.process}"
        dispatcher = _start_notifying(stack, settings, context, stop)
        keep = settings.retention
        thinning = ThinningDays(
            settings.thin_steps_days, settings.thin_windows_days, settings.thin_hours_days
        )
        _start_thread(stack, "janitor", Janitor(context.store, keep, thinning).run, stop)
        recorder = DiskRecorder(context.store, context.disk)
        _start_thread(stack, "disk", recorder.run, stop)
        if context.bucket is not None:
            after_s = max(settings.s3_after_h * 3600, 2 * settings.revise_for_s)
            mover = Mover(context.store, context.bucket, after_s=after_s)
            _start_thread(stack, "mover", mover.run, stop)
        # Its first turn would compile what other processes compile now. Before the first heartbeat,
        # as others leave shards to a consumer that has one.
        warming_up.wait(_COMPILED_WITHIN_S)
        watchdog = Watchdog()
        context = replace(context, note_progress=watchdog.restart, wake_dispatcher=dispatcher.wake)
        consumer = Consumer(context, owner)
        every_s = context.lease_s / REFRESHES_A_LEASE
        _start_thread(stack, "heartbeat", keep_renewing, consumer.leases, every_s, stop)
        stack.callback(watchdog.stop)
        stack.callback(stop.set)
        # Later garbage collections need not scan what start-up has created.
        gc.collect()
        gc.freeze()
        log.info("consumer started", name=name)
        consumer.run(stop)


def _start_thread(stack: ExitStack, name: str, work: Callable[..., None], *args: object) -> None:
    """Start a thread; `stack` waits for its end."""
    thread = threading.Thread(target=work, args=args, name=name)
    thread.start()
    stack.callback(thread.join)


def notify_context(settings: Settings, store: Store, rules: Sequence[Rule]) -> NotifyContext:
    """Dependencies of dispatcher and sender; raises StartUpFailed if a setting cannot be used."""
    return NotifyContext(
        store=store,
        transport=settings.transport(),
        default_rules=rules,
        timing=NotificationTiming(
            interval_s=settings.alert_group_interval_s,
            repeat_s=settings.alert_repeat_h * 3600.0,
            damping_s=settings.alert_damping_s,
        ),
        base_url=settings.public_url,
        has_pictures=has_pictures(settings),
        hook=settings.cordon_hook(),
        num_shards=settings.shards,
        rng=random.Random(),  # noqa: S311 - spreads retries; need not be secret
    )


def has_pictures(settings: Settings) -> bool:
    """Whether messages show charts: receivers fetch them by https only."""
    is_public = (settings.public_url or "").lower().startswith("https://")
    return is_public and is_png_available()


def check(settings: Settings) -> None:
    """Raise PacelineError, which says what to change, unless queue and store can be used."""
    settings.check_usable()
    with ExitStack() as stack:
        context = _open_context(settings, stack)
        for shard in range(settings.shards):
            context.queue.backlog(shard)


def _warn_of_secrets(store: Store) -> None:
    with store.read() as conn:
        counts = resealing.count(conn)
    if counts.locked:
        log.warning(
            "secrets of receivers are not all encrypted with a key that is here",
            locked=counts.locked,
            keys=sorted(counts.by_key),
        )


def _start_notifying(
    stack: ExitStack, settings: Settings, context: ConsumerContext, stop: threading.Event
) -> Dispatcher:
    """Start dispatcher and sender in threads: no receiver delays an analysis."""
    notify = notify_context(settings, context.store, context.default_rules)
    sender = OutboxSender(notify)
    cordoner = None
    if notify.hook is not None:
        guard = notify.transport.operator_guard
        cordoner = Cordoner(notify.store, notify.hook, guard, context.unix_time)
        _start_thread(stack, "cordoner", cordoner.run, stop)
    _start_thread(stack, "sender", sender.run, stop)
    dispatcher = Dispatcher(notify, cordoner, sender.nudge)
    _start_thread(stack, "dispatcher", dispatcher.run, stop)
    return dispatcher


def _wait_for_context(
    settings: Settings, stack: ExitStack, stop: threading.Event
) -> ConsumerContext | None:
    """Wait until queue and store answer; None if `stop` is set before."""
    backoff = Backoff(stop)
    while not stop.is_set():
        with ExitStack() as attempt:
            try:
                context = _open_context(settings, attempt)
                _warn_of_secrets(context.store)
                with context.store.write() as conn:
                    receivers.put_settings_receiver(conn, settings.settings_receiver())
            except Unavailable as error:
                backoff.wait(error)
            else:
                stack.push(attempt.pop_all())
                return context
    return None


def _open_context(settings: Settings, stack: ExitStack) -> ConsumerContext:
    if settings.redis_url is None:
        raise StartUpFailed(
            "no event queue: set PACELINE_REDIS_URL, or run all on one machine by 'paceline serve'"
        )
    if not is_migrated(settings.store_url):
        raise StartUpFailed("the database has other tables than this version: run paceline migrate")
    store = Store(settings.store_url, keys=settings.secret_keys())
    stack.callback(store.close)
    queue = RedisReader(settings.redis_url)
    stack.callback(queue.close)
    weaknesses = (*queue.weaknesses(), *durability_weaknesses(store))
    refuse_weaknesses(weaknesses, allow_lossy=settings.allow_lossy)
    for sentence in weaknesses:
        log.warning("data may be lost, as allowed", reason=sentence)
    announcer = RedisAnnouncer(settings.redis_url)
    stack.callback(announcer.close)
    return ConsumerContext(
        store=store,
        queue=queue,
        announcer=announcer,
        default_rules=settings.default_rules(),
        group_wait_s=settings.alert_group_wait_s,
        assembler_rules=WindowRules(
            settings.window_steps, settings.step_deadline_s, settings.revise_for_s
        ),
        silent_after_s=settings.silent_after_s,
        start_within_s=settings.start_within_s,
        num_shards=settings.shards,
        lease_s=settings.lease_s,
        monotonic=time.monotonic,
        unix_time=time.time,
        database_time=now_s,
        disk=settings.disk_watch(),
        bucket=settings.bucket(),
    )
