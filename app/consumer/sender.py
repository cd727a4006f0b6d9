"""The sender: claims messages of the outbox, sends them, and saves the results.

Each attempt has a thread of its own, so that a receiver which never answers delays no other; a
receiver has at most two at a time. Queued messages whose alerts were silenced meanwhile are
dropped. A receiver that keeps failing is disabled, and the project's others are notified. Messages
to receivers whose key is not here stay in the outbox, for senders that have it.
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import structlog

from app.alerts import sending
from app.alerts.formats import slack
from app.alerts.formats.registry import render_notice
from app.alerts.labels import Silence
from app.alerts.notice import Message, Notice, NoticeKind
from app.alerts.planning import LastNotifiedKind, silenced_until
from app.alerts.receiver import (
    GONE_STATUS,
    SETTINGS_RECEIVER_ID,
    Receiver,
    next_delay_s,
    parse_retry_after,
    reason_to_disable,
)
from app.alerts.sending import AttemptResult
from app.consumer.context import NotifyContext
from app.errors import Unavailable
from app.store import audit, projects
from app.store.alerting import deliveries, notifications, outbox
from app.store.alerting import receivers as stored_receivers
from app.store.alerting import silences as stored_silences
from app.store.alerting.deliveries import DeliveryAttempt
from app.store.alerting.notifications import LastNotification
from app.store.alerting.outbox import Delivery
from app.store.database import Connection
from app.trace.job import DEFAULT_PROJECT, project_of

log = structlog.get_logger()

_POLL_S = 0.25  # how soon a stop is noticed
# Without a nudge: for messages of other dispatchers, and for retries.
CHECK_EVERY_S = 1.0
_PAUSE_AFTER_ERROR_S = 5.0
# Longer than an attempt and saving its result can take; then another sender may try.
CLAIM_S = 30.0
# Threads are started on demand, and mostly wait for an answer. Four projects whose receivers all
# hang (MAX_PER_PROJECT each) leave some to the others.
MAX_AT_ONCE = 160


class OutboxSender:
    """Delivers messages; any number of senders share one outbox. Close it when done."""

    def __init__(self, context: NotifyContext, kinds: frozenset[NoticeKind] | None = None) -> None:
        """With `kinds`, it delivers messages of these only."""
        self._context = context
        self._kinds = kinds
        self._pool = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="send")
        self._under_way: set[Future[None]] = set()
        self._nudged = threading.Event()

    def nudge(self) -> None:
        """Check the outbox soon."""
        self._nudged.set()

    def run(self, stop: threading.Event) -> None:
        """Deliver due messages until `stop` is set; returns when no attempt is in flight."""
        left_s = 0.0
        while not stop.is_set():
            if not self._nudged.wait(_POLL_S):
                left_s -= _POLL_S
                if left_s > 0:
                    continue
            self._nudged.clear()
            try:
                self.send_due()
                left_s = CHECK_EVERY_S
            except Unavailable as error:
                log.warning("no alert sent", reason=str(error))
                left_s = _PAUSE_AFTER_ERROR_S
            except Exception:
                log.exception("alerts not sent")
                left_s = _PAUSE_AFTER_ERROR_S
        self.close()

    def close(self) -> None:
        """Wait until no attempt is in flight."""
        self._pool.shutdown(wait=True)

    def send_due(self) -> int:
        """Begin the due attempts, every one in its own thread; returns their number.

        Raises:
            StoreUnavailable: the outbox cannot be read.
        """
        self._under_way = {attempt for attempt in self._under_way if not attempt.done()}
        room = MAX_AT_ONCE - len(self._under_way)
        due = self._claim(room) if room else []
        for delivery, receiver, now_s in due:
            self._under_way.add(self._pool.submit(self._attempt, delivery, receiver, now_s))
        return len(due)

    def settle(self) -> None:
        """Wait for all attempts that have begun."""
        wait(self._under_way)

    def _claim(self, room: int) -> Sequence[tuple[Delivery, Receiver, float]]:
        with self._context.store.read() as conn:
            # Mostly nothing is due, and reading locks nothing.
            now_s = self._context.database_time(conn)
            if not outbox.has_due(conn, now_s=now_s, kinds=self._kinds):
                return []
        with self._context.store.write() as conn:
            now_s = self._context.database_time(conn)
            claimed = outbox.claim(
                conn, now_s=now_s, lease_s=CLAIM_S, limit=room, kinds=self._kinds
            )
            # Read the time again: a silence may have begun while we waited for locks.
            due = drop_silenced(conn, claimed, self._context.database_time(conn))
            receivers = stored_receivers.of_ids(conn, [delivery.endpoint_id for delivery in due])
            _explain_waiting(conn, now_s)
        return [(delivery, receivers[delivery.endpoint_id], now_s) for delivery in due]

    def _attempt(self, delivery: Delivery, receiver: Receiver, now_s: float) -> None:
        try:
            answer = self._sent(delivery, receiver, now_s)
            self._write_down(delivery, receiver, answer, began_s=now_s)
        except Unavailable as error:
            # Its claim lapses, and it is sent again under the same id.
            log.warning("attempt not saved", reason=str(error))
        except Exception:
            log.exception("attempt not saved", delivery=delivery.delivery_id)
        finally:
            self.nudge()  # messages may have waited for this one

    def _sent(self, delivery: Delivery, receiver: Receiver, now_s: float) -> AttemptResult:
        if receiver.locked is not None:
            # The key is here, or it would not be claimed: the secrets were changed, and no wait
            # mends that. So it fails like a wrong address, until a person sets it up anew.
            return AttemptResult(None, receiver.locked)
        try:
            message = _message(delivery, receiver)
            return sending.send(
                self._context.transport, receiver, message, delivery.delivery_id, now_s
            )
        except Exception:
            # A message that cannot be sent counts as failed; the others go on.
            log.exception("alert not sent", delivery=delivery.delivery_id)
            return AttemptResult(None, "an error of Paceline's own: its log has the traceback")

    def _write_down(
        self, delivery: Delivery, receiver: Receiver, answer: AttemptResult, *, began_s: float
    ) -> None:
        with self._context.store.write() as conn:
            now_s = self._context.database_time(conn)
            attempt = DeliveryAttempt(
                delivery.attempt, began_s, answer.took_s, answer.status, answer.detail
            )
            deliveries.add_attempt(conn, delivery.delivery_id, attempt)
            if answer.is_success:
                # The receiver first: claiming locks in this order.
                stored_receivers.mark_succeeded(conn, delivery.endpoint_id, now_s)
                outbox.mark_delivered(conn, delivery, now_s=now_s)
            else:
                self._failed(conn, delivery, receiver, answer, now_s)
        log.info(
            "alert attempt",
            delivery=delivery.delivery_id,
            receiver=delivery.endpoint_id,
            attempt=delivery.attempt,
            detail=answer.detail,
        )

    def _failed(
        self,
        conn: Connection,
        delivery: Delivery,
        receiver: Receiver,
        answer: AttemptResult,
        now_s: float,
    ) -> None:
        is_first = receiver.format == "slack" and delivery.attempt == 1
        if is_first and slack.is_image_refused(delivery.payload, answer.status):
            # Not a failure of the receiver: retry at once, without the image.
            outbox.mark_failed(conn, delivery, detail=answer.detail, next_at_s=now_s, now_s=now_s)
            return
        delay_s = next_delay_s(
            delivery.attempt,
            self._context.rng,
            retry_after_s=parse_retry_after(answer.retry_after, now_s=now_s),
            is_overloaded=answer.is_overloaded,
        )
        # A late heartbeat would say that all is well when it may not be: the next one follows.
        is_final = delay_s is None or answer.status == GONE_STATUS or delivery.kind == "heartbeat"
        next_at_s = None if is_final or delay_s is None else now_s + delay_s
        health = stored_receivers.mark_failed(
            conn, delivery.endpoint_id, detail=answer.detail, now_s=now_s
        )
        outbox.mark_failed(conn, delivery, detail=answer.detail, next_at_s=next_at_s, now_s=now_s)
        reason = reason_to_disable(
            status=answer.status,
            failures=health.failures,
            failing_since_s=health.failing_since_s,
            now_s=now_s,
        )
        if reason is not None:
            self._disable(conn, delivery, receiver, reason, now_s)

    def _disable(
        self, conn: Connection, delivery: Delivery, receiver: Receiver, reason: str, now_s: float
    ) -> None:
        """Disable the receiver that has just failed, unless it is disabled; notify the others.

        Its queued messages fail when they are claimed.
        """
        if not stored_receivers.disable(conn, receiver.endpoint_id, reason=reason, now_s=now_s):
            return
        log.error("receiver disabled", receiver=receiver.endpoint_id, reason=reason)
        for project in _projects_of(conn, delivery, receiver):
            audit.add(
                conn,
                project=project,
                at_s=now_s,
                action="endpoint.disable",
                object_kind="endpoint",
                object_id=receiver.endpoint_id,
                detail={"name": receiver.name, "reason": reason},
            )
            base_url = self._context.pages_url(conn)
            notice = _unhealthy_notice(base_url, receiver, project, reason, now_s)
            for other in stored_receivers.of_alerts(conn, project):
                if other.is_enabled and other.endpoint_id != receiver.endpoint_id:
                    write_message(conn, notice, other)


def _explain_waiting(conn: Connection, now_s: float) -> None:
    """Log and save which messages wait for a key that is not here."""
    for endpoint_id, reason in stored_receivers.without_key(conn).items():
        number = outbox.note_why_waiting(conn, endpoint_id, reason, now_s=now_s)
        if number:
            waiting = {"receiver": endpoint_id, "messages": number, "reason": reason}
            log.warning("alerts wait for a key", **waiting)


def _message(delivery: Delivery, receiver: Receiver) -> Message:
    body = delivery.payload
    if receiver.format == "slack" and delivery.attempt > 1:
        body = slack.without_image(body)
    return Message(
        body, delivery.content_type, delivery.headers, delivery.subject, kind=delivery.kind
    )


# Kinds that silences drop; an acknowledgement is sent all the same.
_ALERT_KINDS = ("firing", "resolved")


@dataclass(frozen=True, slots=True)
class _SilencedDelivery:
    """A dropped message, its alerts' last notifications, and when to plan their group again."""

    delivery: Delivery
    job_id: str
    rule: str
    notified: Mapping[str, LastNotification]
    replan_at_s: float


def drop_silenced(conn: Connection, claimed: Sequence[Delivery], now_s: float) -> list[Delivery]:
    """Drop queued messages whose alerts were silenced meanwhile; returns the others.

    Their alerts are notified again after the silence, if the state is still the same. A message
    about several alerts cannot be split: its group is planned again at once, and a new message has
    the alerts that are not silenced.
    """

    @cache
    def silences(project: str) -> list[Silence]:
        return stored_silences.active(conn, project, now_s=now_s)

    kept, dropped = [], []
    for delivery in claimed:
        active = silences(project_of(delivery.job_id)) if delivery.job_id else []
        held = _silenced_delivery(conn, delivery, active, now_s) if active else None
        if held is None:
            kept.append(delivery)
        else:
            outbox.mark_silenced(conn, delivery, now_s=now_s)
            dropped.append(held)
    unsent = [held for held in dropped if not _mark_unsent(conn, held)]
    # Last, and in the order in which groups are locked everywhere.
    for held in sorted(dropped, key=lambda held: (held.job_id, held.rule)):
        if held in unsent:
            notifications.clear_last_notified(
                conn, held.job_id, held.rule, at_s=held.delivery.created_s
            )
        notifications.wake_group(conn, held.job_id, held.rule, at_s=held.replan_at_s)
    return kept


def _silenced_delivery(
    conn: Connection, delivery: Delivery, silences: Sequence[Silence], now_s: float
) -> _SilencedDelivery | None:
    """The delivery, if an alert of it is silenced; None if it is to be sent."""
    if delivery.job_id is None or delivery.rule is None or delivery.kind not in _ALERT_KINDS:
        return None
    notified = notifications.last_notifications(conn, delivery.job_id, delivery.rule)
    news = {mark: notified[mark] for mark in delivery.fingerprints if mark in notified}
    labels = {mark: row.labels for mark, row in news.items()}
    until = silenced_until(labels, silences, now_s)
    if not until:
        return None
    replan_at_s = min(until.values()) if len(until) == len(news) else now_s
    return _SilencedDelivery(delivery, delivery.job_id, delivery.rule, news, replan_at_s)


def _mark_unsent(conn: Connection, held: _SilencedDelivery) -> bool:
    """Make the news of the message due again; True if another receiver may have got the same news.

    An alert that some receiver knows to fire counts as notified long ago: it is repeated while it
    fires, and its resolution is sent, to all receivers, since others may have got their message.
    An alert that no receiver knows is news if it still fires. Alerts with a later message are
    left out.
    """
    at_s = held.delivery.created_s
    sent = deliveries.fingerprints_sent(conn, held.job_id, held.rule, written_s=at_s)
    due_again = {}
    for fingerprint, row in held.notified.items():
        if row.kind in _ALERT_KINDS and row.at_s == at_s:
            is_unknown = row.first_at_s == at_s and fingerprint not in sent
            is_news = is_unknown and row.kind == "firing"
            kind: LastNotifiedKind = "lapsed" if is_news else "firing"
            due_again[fingerprint] = replace(row, kind=kind, at_s=0.0)
    notifications.save_notifications(conn, held.job_id, held.rule, due_again)
    return bool(sent)


def write_message(
    conn: Connection, notice: Notice, receiver: Receiver, job_id: str | None = None
) -> Literal["written", "known", "failed"]:
    """Put the notice, of a job or of none, into the outbox for a receiver that has it not yet."""
    try:
        message = render_notice(notice, receiver)
    except Exception:
        # The other receivers may have formats that work.
        log.exception("message not written", receiver=receiver.endpoint_id)
        return "failed"
    added = outbox.add(conn, notice, message, receiver.endpoint_id, job_id)
    return "known" if added is None else "written"


def _projects_of(conn: Connection, delivery: Delivery, receiver: Receiver) -> list[str]:
    """The receiver's project; all projects for the receiver of the settings."""
    if receiver.project is not None:
        return [receiver.project]
    own = DEFAULT_PROJECT if delivery.job_id is None else project_of(delivery.job_id)
    return sorted({own, *projects.names(conn)})


def _unhealthy_notice(
    base_url: str | None, receiver: Receiver, project: str, reason: str, now_s: float
) -> Notice:
    key = f"endpoint-disabled:{receiver.endpoint_id}:{now_s:.3f}"
    base = None if base_url is None else base_url.rstrip("/")
    again = (
        "Paceline's environment names it: correct its address there"
        if receiver.endpoint_id == SETTINGS_RECEIVER_ID
        else "Correct it and enable it again on the page of receivers"
    )
    return Notice(
        notice_id=hashlib.sha256(key.encode()).hexdigest()[:32],
        kind="notifier-unhealthy",
        group_key=f'{{}}:{{endpoint="{receiver.endpoint_id}", project="{project}"}}',
        project=project,
        job=None,
        job_name=None,
        rule=None,
        severity="critical",
        at_s=now_s,
        sentence=f"The receiver {receiver.name} is disabled: {reason}.",
        sub=f"{again}; until then it gets no alerts.",
        page_url=None if base is None else f"{base}/alerts/receivers",
        base_url=base_url,
        group_labels={"endpoint": receiver.endpoint_id, "project": project},
    )
