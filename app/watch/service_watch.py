"""Decides when people are told of the service itself, and when heartbeats are written.

Consumers are dead when none has finished a turn for `consumers_dead_after_s`, whatever their
heartbeats in the database say. This process then puts a message for every receiver into the outbox,
in the transaction that notes the outage, and sends it by a sender of its own: the usual senders are
in the consumers. Heartbeats of dead-man's switches are written here while all is well, but sent by
the consumers: so they stay away when any part fails.
"""

import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from app.addresses import listens_on_all
from app.alerts.formats.alertmanager import REFRESH_EVERY_S
from app.alerts.formats.registry import knows_each_alert
from app.alerts.receiver import Receiver
from app.api.http.request_log import RefusedJobs
from app.api.service.service import Service
from app.consumer.context import MAX_WITHOUT_PROGRESS_S, NotifyContext
from app.consumer.sender import OutboxSender, write_message
from app.errors import Unavailable
from app.settings import Settings
from app.store import as_of
from app.store.alerting import deliveries, outbox, receivers, service_watches
from app.store.alerting.service_watches import Watch, WatchName
from app.store.as_of import AsOf
from app.store.database import Connection
from app.trace.job import DEFAULT_PROJECT
from app.watch import notices
from app.watch.canary import Canary, CanaryAddress
from app.watch.notices import SERVICE_KINDS, ServiceNews, Words

log = structlog.get_logger()

CHECK_EVERY_S = 5.0
# A consumer that turns says so every few seconds.
TURNED_WITHIN_S = 30.0
# Behind for so long is a notice of its own: docs/operations.md.
_BEHIND_TOLD_AFTER_S = 300.0
# Heartbeats stop when none has for so long: one job's large window is no reason to wake people.
_HEARTBEATS_GO_ON_S = MAX_WITHOUT_PROGRESS_S


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """Seconds after which people are told; None: never. Without a canary none is missed."""

    consumers_dead_after_s: float | None
    canary_missing_after_s: float | None


class ServiceWatch:
    """Watches the service from one API process. Close it when done."""

    def __init__(
        self,
        context: NotifyContext,
        limits: WatchLimits,
        *,
        is_migrated: Callable[[], bool],
        refused: RefusedJobs | None = None,
    ) -> None:
        """`refused` are the jobs whose pushes this process refuses."""
        self._context = context
        self._refused = refused
        self._limits = limits
        self._is_migrated = is_migrated
        self._sender = OutboxSender(context, SERVICE_KINDS)
        self._repeated: dict[WatchName, tuple[float, int]] = {}  # outage and repetition, by part

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set."""
        while not stop.wait(CHECK_EVERY_S):
            try:
                if self._is_migrated():
                    self.turn()
            except Unavailable as error:
                # Without a database no receiver can be notified: the dead-man's switch is for that.
                log.warning("service not watched", reason=str(error))
            except Exception:
                log.exception("service not watched")
        self.close()

    def close(self) -> None:
        """Wait until no attempt is in flight."""
        self._sender.close()

    def turn(self) -> None:
        """Begin or end outages, write due heartbeats, send messages; raises StoreUnavailable."""
        with self._context.store.write() as conn:
            now_s = self._context.database_time(conn)
            if self._refused is not None:
                self._refused.save(conn, now_s)
            processed = as_of.read(conn, num_shards=self._context.num_shards, now_s=now_s)
            progress = processed.of_service
            works = service_watches.note_consumers(conn, now_s=now_s)
            backlog = service_watches.note_backlog(conn, is_behind=progress.is_behind, now_s=now_s)
            canary = service_watches.read(conn).get("canary")
            if canary is not None and self._limits.canary_missing_after_s is None:
                service_watches.forget(conn, "canary")
        self._tell_of_consumers(works, now_s)
        self._tell_of_backlog(backlog, works, progress, now_s)
        canary_works = self._tell_of_canary(canary, works, now_s)
        if canary_works and self._turns_within(_HEARTBEATS_GO_ON_S, works, now_s):
            self._write_heartbeats()
        self._sender.send_due()

    def settle(self) -> None:
        """Wait for all attempts that have begun."""
        self._sender.settle()

    def _tell_of_consumers(self, works: Watch, now_s: float) -> None:
        limit_s, down_s = self._limits.consumers_dead_after_s, works.down_s(now_s)
        is_down = limit_s is not None and down_s >= limit_s
        is_up = _is_turning(works, now_s, after_s=works.notified_s or 0.0)
        self._tell(
            "consumers", works, now_s, is_down=is_down, down=notices.consumers_down(down_s),
            is_up=is_up, up=notices.consumers_up,
        )  # fmt: skip

    def _tell_of_backlog(self, backlog: Watch, works: Watch, progress: AsOf, now_s: float) -> None:
        """Tell people that consumers work and are behind; not while they know that none works."""
        is_down = backlog.down_s(now_s) >= _BEHIND_TOLD_AFTER_S and works.notified_s is None
        is_up = (backlog.ok_s or 0.0) > (backlog.notified_s or 0.0)
        self._tell(
            "backlog", backlog, now_s, is_down=is_down,
            down=notices.backlog_behind(progress, now_s), is_up=is_up, up=notices.backlog_gone,
        )  # fmt: skip

    def _tell_of_canary(self, canary: Watch | None, works: Watch, now_s: float) -> bool:
        """Tell people of the canary; returns whether it is not known to be missing."""
        limit_s = self._limits.canary_missing_after_s
        if canary is None or limit_s is None:
            return True
        down_s = canary.down_s(now_s)
        is_missing = down_s >= limit_s
        # Without a limit nobody is notified of dead consumers: this notice is the only one.
        consumers_work = self._limits.consumers_dead_after_s is None or self._turns_within(
            TURNED_WITHIN_S, works, now_s
        )
        is_up = (canary.ok_s or 0.0) > (canary.notified_s or 0.0)
        self._tell(
            "canary", canary, now_s, is_down=is_missing and consumers_work,
            down=notices.canary_missing(down_s, canary.detail), is_up=is_up,
            up=notices.canary_back,
        )  # fmt: skip
        return not is_missing and canary.notified_s is None

    def _tell(
        self,
        part: WatchName,
        watch: Watch,
        now_s: float,
        *,
        is_down: bool,
        down: Words,
        is_up: bool,
        up: Callable[[float], Words],
    ) -> None:
        """Tell that a part is down, again and again where receivers forget it, or that it is up.

        `up` gives the words for so many seconds since people were told first.
        """
        told_s = watch.notified_s
        if told_s is None:
            if is_down:
                self._begin(ServiceNews(part, "service-down", now_s, now_s, down), watch.detail)
        elif is_up:
            self._end(ServiceNews(part, "service-up", told_s, now_s, up(now_s - told_s)))
        elif repeat := self._due_repeat(part, told_s, now_s):
            self._repeat(ServiceNews(part, "service-down", told_s, now_s, down, repeat))

    def _turns_within(self, seconds: float, works: Watch, now_s: float) -> bool:
        """Whether a consumer has turned a moment ago, and none is about to be called dead.

        People are told of dead consumers only after the limit, and of a canary that is missing for
        that reason not at all; so after half of the limit there is doubt.
        """
        limit_s = self._limits.consumers_dead_after_s
        within_s = seconds if limit_s is None else min(seconds, limit_s / 2)
        return works.notified_s is None and _is_turning(works, now_s, within_s=within_s)

    def _due_repeat(self, part: WatchName, told_s: float, now_s: float) -> int:
        """The number of the repetition that is due, for receivers that forget; 0 if none is."""
        repeat = max(0, int((now_s - told_s) / REFRESH_EVERY_S))
        return 0 if self._repeated.get(part) == (told_s, repeat) else repeat

    def _repeat(self, news: ServiceNews) -> None:
        with self._context.store.write() as conn:
            takers = notices.receivers_of(conn, news.kind)
            to = [receiver for receiver in takers if knows_each_alert(receiver.format)]
            ids = [receiver.endpoint_id for receiver in to]
            outbox.drop_notice(conn, news.outage_id, now_s=news.at_s, endpoint_ids=ids)
            self._put(conn, news, to)
        self._repeated[news.part] = (news.began_s, news.repeat)

    def _begin(self, news: ServiceNews, detail: str | None) -> None:
        with self._context.store.write() as conn:
            if not service_watches.begin_outage(conn, news.part, now_s=news.at_s, detail=detail):
                return
            number = self._put(conn, news, notices.receivers_of(conn, news.kind))
        log.error(
            "service does not work", part=news.part, said=news.words.sentence, messages=number
        )

    def _end(self, news: ServiceNews) -> None:
        with self._context.store.write() as conn:
            if not service_watches.end_outage(conn, news.part):
                return
            # Receivers that no message has reached need not hear of an outage that is over.
            outbox.drop_notice(conn, news.outage_id, now_s=news.at_s)
            tried = outbox.receivers_tried(conn, news.outage_id)
            if news.part == "consumers":
                # No round could succeed without them: its outage counts from now on.
                service_watches.restart_outage_clock(conn, "canary", now_s=news.at_s)
            to = [receiver for receiver in notices.receivers_of(conn, news.kind)
                  if receiver.endpoint_id in tried]  # fmt: skip
            number = self._put(conn, news, to)
        log.info("service works again", part=news.part, messages=number)

    def _put(self, conn: Connection, news: ServiceNews, to: Sequence[Receiver]) -> int:
        """Add the news to the outbox for these receivers; returns the number of messages."""
        base_url, number = self._context.pages_url(conn), 0
        for receiver in to:
            notice = news.notice(base_url, receiver.project or DEFAULT_PROJECT)
            number += write_message(conn, notice, receiver) == "written"
        return number

    def _write_heartbeats(self) -> None:
        with self._context.store.read() as conn:
            now_s = self._context.database_time(conn)
            if not receivers.has_due_heartbeats(conn, now_s=now_s):
                return
        with self._context.store.write() as conn:
            due = receivers.claim_heartbeats(conn, now_s=now_s)
            ids = [receiver.endpoint_id for receiver in due]
            deliveries.forget_heartbeats(conn, ids, now_s=now_s)
            news = ServiceNews("consumers", "heartbeat", now_s, now_s, notices.ALL_WORKS)
            self._put(conn, news, due)


def _is_turning(
    works: Watch, now_s: float, *, after_s: float = 0.0, within_s: float = TURNED_WITHIN_S
) -> bool:
    """Whether a consumer has finished a turn a moment ago, and after this time."""
    turned_s = works.ok_s
    return turned_s is not None and turned_s > after_s and now_s - turned_s <= within_s


def start_watching(service: Service, settings: Settings, stop: threading.Event) -> None:
    """Watch consumers and canary, and do rounds of the canary, until `stop` is set.

    Raises:
        StartUpFailed: the mail server cannot be used as it is set up.
    """
    context = NotifyContext(
        service.store,
        settings.transport(),
        default_rules=(),  # the service itself has no rules
        base_url=settings.public_url,
        num_shards=settings.shards,
        database_time=service.database_time,
    )
    has_canary = settings.canary_every_s > 0
    limits = WatchLimits(
        settings.consumers_dead_after_s or None,
        settings.canary_missing_after_s if has_canary else None,
    )
    watch = ServiceWatch(
        context, limits, is_migrated=service.is_migrated, refused=service.refused_jobs
    )
    # Daemons: neither an attempt nor a round delays the end of the process.
    threading.Thread(target=watch.run, args=(stop,), name="watch", daemon=True).start()
    if has_canary:
        canary = Canary(
            service.store,
            canary_address(settings, service.auth.canary_token),
            every_s=settings.canary_every_s,
            num_shards=settings.shards,
            is_migrated=service.is_migrated,
            database_time=service.database_time,
        )
        threading.Thread(target=canary.run, args=(stop,), name="canary", daemon=True).start()


def canary_address(settings: Settings, token: str) -> CanaryAddress:
    """Where this process answers itself, with its own certificate."""
    host = settings.host
    if listens_on_all(host):
        host = "::1" if host == "::" else "127.0.0.1"
    tls = None if settings.tls_cert is None else _trust_only(settings.tls_cert)
    return CanaryAddress(settings.url_at(host), token, tls)


def _trust_only(certificate: Path) -> ssl.SSLContext:
    """A context that trusts this certificate, for any name: the connection is to this process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
