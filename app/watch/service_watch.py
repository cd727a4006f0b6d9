"""Decides when people are told of the service itself, and when heartbeats are written.

Consumers are dead when none has finished a turn for `consumers_dead_after_s`, whatever their
heartbeats in the database say. This process then puts a message for every receiver into the outbox,
in the transaction that notes the outage, and sends it by a sender of its own: the usual senders are
in the consumers. Heartbeats of dead-man's switches are written here while all is well, but sent by
the consumers: so they stay away when any part fails.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from app.alerts.formats.alertmanager import REFRESH_EVERY_S
from app.alerts.formats.registry import knows_each_alert
from app.alerts.receiver import Receiver
from app.api.http.refused_jobs import RefusedJobs
from app.consumer.context import MAX_WITHOUT_PROGRESS_S, NotifyContext
from app.consumer.sender import OutboxSender
from app.errors import Unavailable
from app.store import as_of
from app.store.alerting import deliveries, outbox, receivers, service_watches
from app.store.alerting.service_watches import Watch, WatchName
from app.store.as_of import AsOf
from app.store.database import Connection
from app.watch import notices
from app.watch.notices import SERVICE_KINDS, ServiceNews

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
                # Without a database nobody can be told: the dead-man's switch is for that.
                log.warning("service not watched", reason=str(error))
            except Exception:
                log.exception("service not watched")
        self.close()

    def close(self) -> None:
        """Wait until no attempt is in flight."""
        self._sender.close()

    def turn(self) -> None:
        """Look once: begin or end outages, write due heartbeats, send what is due.

        Raises:
            StoreUnavailable: the database does not answer.
        """
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
        is_found = self._tell_of_canary(canary, works, now_s)
        if is_found and self._turns_within(_HEARTBEATS_GO_ON_S, works, now_s):
            self._write_heartbeats()
        self._sender.send_due()

    def settle(self) -> None:
        """Wait for all attempts that have begun."""
        self._sender.settle()

    def _tell_of_consumers(self, works: Watch, now_s: float) -> None:
        limit_s = self._limits.consumers_dead_after_s
        down_s = works.down_s(now_s)
        if works.told_s is None:
            if limit_s is not None and down_s >= limit_s:
                self._begin(notices.consumers_down(now_s, now_s, down_s), None)
        elif _is_turning(works, now_s, after_s=works.told_s):
            self._end(notices.consumers_up(works.told_s, now_s))
        elif repeat := self._due_repeat("consumers", works.told_s, now_s):
            self._repeat(notices.consumers_down(works.told_s, now_s, down_s, repeat=repeat))

    def _tell_of_backlog(self, backlog: Watch, works: Watch, progress: AsOf, now_s: float) -> None:
        """Tell that consumers work and are behind; where none works, that says it all."""
        if backlog.told_s is None:
            if backlog.down_s(now_s) >= _BEHIND_TOLD_AFTER_S and works.told_s is None:
                self._begin(notices.backlog_behind(now_s, now_s, progress), None)
        elif (backlog.ok_s or 0.0) > backlog.told_s:
            self._end(notices.backlog_gone(backlog.told_s, now_s))
        elif repeat := self._due_repeat("backlog", backlog.told_s, now_s):
            self._repeat(notices.backlog_behind(backlog.told_s, now_s, progress, repeat=repeat))

    def _tell_of_canary(self, canary: Watch | None, works: Watch, now_s: float) -> bool:
        """Tell of the canary, and whether it is not known to be missing."""
        limit_s = self._limits.canary_missing_after_s
        if canary is None or limit_s is None:
            return True
        down_s = canary.down_s(now_s)
        is_missing = down_s >= limit_s
        if canary.told_s is None:
            # Without a limit no notification about consumers is ever sent: this one says it all.
            consumers_work = self._limits.consumers_dead_after_s is None or self._turns_within(
                TURNED_WITHIN_S, works, now_s
            )
            if is_missing and consumers_work:
                news = notices.canary_missing(now_s, now_s, down_s, canary.detail)
                self._begin(news, canary.detail)
        elif (canary.ok_s or 0.0) > canary.told_s:
            self._end(notices.canary_found(canary.told_s, now_s))
        elif repeat := self._due_repeat("canary", canary.told_s, now_s):
            told_s, detail = canary.told_s, canary.detail
            self._repeat(notices.canary_missing(told_s, now_s, down_s, detail, repeat=repeat))
        return not is_missing and canary.told_s is None

    def _turns_within(self, seconds: float, works: Watch, now_s: float) -> bool:
        """Whether a consumer has turned a moment ago, and none is about to be called dead.

        People are told of dead consumers only after the limit, and of a canary that is missing for
        that reason not at all; so after half of the limit there is doubt.
        """
        limit_s = self._limits.consumers_dead_after_s
        within_s = seconds if limit_s is None else min(seconds, limit_s / 2)
        return works.told_s is None and _is_turning(works, now_s, within_s=within_s)

    def _due_repeat(self, part: WatchName, told_s: float, now_s: float) -> int:
        """The number of the repetition that is due, for receivers that forget; 0 if none is."""
        repeat = max(0, int((now_s - told_s) / REFRESH_EVERY_S))
        return 0 if self._repeated.get(part) == (told_s, repeat) else repeat

    def _repeat(self, news: ServiceNews) -> None:
        with self._context.store.write() as conn:
            to = [
                each
                for each in notices.receivers_of(conn, news.kind)
                if knows_each_alert(each.format)
            ]
            ids = [each.endpoint_id for each in to]
            outbox.drop_notice(conn, news.outage_id, now_s=news.at_s, endpoint_ids=ids)
            self._put(conn, news, to)
        self._repeated[news.part] = (news.began_s, news.repeat)

    def _begin(self, news: ServiceNews, detail: str | None) -> None:
        with self._context.store.write() as conn:
            if not service_watches.begin_outage(conn, news.part, now_s=news.at_s, detail=detail):
                return
            number = self._put(conn, news, notices.receivers_of(conn, news.kind))
        log.error("service does not work", part=news.part, said=news.sentence, messages=number)

    def _end(self, news: ServiceNews) -> None:
        with self._context.store.write() as conn:
            if not service_watches.end_outage(conn, news.part):
                return
            # Receivers that no message has reached need not hear of an outage that is over.
            outbox.drop_notice(conn, news.outage_id, now_s=news.at_s)
            tried = outbox.receivers_tried(conn, news.outage_id)
            if news.part == "consumers":
                # No round could be found without them: its outage counts from now on.
                service_watches.restart_outage_clock(conn, "canary", now_s=news.at_s)
            told = [each for each in notices.receivers_of(conn, news.kind)
                    if each.endpoint_id in tried]  # fmt: skip
            number = self._put(conn, news, told)
        log.info("service works again", part=news.part, messages=number)

    def _put(self, conn: Connection, news: ServiceNews, to: Sequence[Receiver]) -> int:
        return notices.put_in_outbox(conn, news, to, base_url=self._context.pages_url(conn))

    def _write_heartbeats(self) -> None:
        with self._context.store.read() as conn:
            now_s = self._context.database_time(conn)
            if not receivers.has_due_heartbeats(conn, now_s=now_s):
                return
        with self._context.store.write() as conn:
            due = receivers.claim_heartbeats(conn, now_s=now_s)
            deliveries.forget_heartbeats(conn, [each.endpoint_id for each in due], now_s=now_s)
            self._put(conn, notices.heartbeat(now_s), due)


def _is_turning(
    works: Watch, now_s: float, *, after_s: float = 0.0, within_s: float = TURNED_WITHIN_S
) -> bool:
    """Whether a consumer has finished a turn a moment ago, and after this time."""
    turned_s = works.ok_s
    return turned_s is not None and turned_s > after_s and now_s - turned_s <= within_s
