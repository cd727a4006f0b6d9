"""Sends what the outbox holds: claim, POST, write down how it went.

Each message has a thread of its own while it is under way, so that a receiver which never answers
keeps nobody else waiting; a receiver has at most two at a time.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import structlog

from app.alerts import send
from app.alerts.answer import Answer
from app.alerts.breaker import GONE, reason_to_disable
from app.alerts.endpoint import Endpoint
from app.alerts.formats import slack
from app.alerts.message import Message
from app.alerts.retry import next_delay_s, parse_retry_after
from app.consumer.desk import Desk
from app.consumer.silenced import not_silenced
from app.consumer.unhealthy import give_up
from app.errors import Unavailable
from app.store import attempts, endpoints, outbox
from app.store.engine import Connection
from app.store.outbox import Delivery

log = structlog.get_logger()

_POLL_S = 0.25  # how soon it is noticed that we are to stop
# Without a nudge: messages of other dispatchers, and those whose time has come.
LOOK_EVERY_S = 1.0
_AFTER_TROUBLE_S = 5.0
# Longer than an attempt can take, its writing down included; then another sender may try.
CLAIM_S = 30.0
# Threads are made as they are needed, and most of the time wait for an answer. Four projects whose
# receivers all hang leave some to the others, until their breakers find them out.
AT_ONCE = 160


class Sender:
    """Delivers messages; any number of senders share one outbox. Close it when done."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="send")
        self._under_way: set[Future[None]] = set()
        self._nudged = threading.Event()

    def nudge(self) -> None:
        """There is something to send: look soon."""
        self._nudged.set()

    def run(self, stop: threading.Event) -> None:
        """Deliver whatever is due until `stop` is set; returns when nothing is under way."""
        left_s = 0.0
        while not stop.is_set():
            if not self._nudged.wait(_POLL_S):
                left_s -= _POLL_S
                if left_s > 0:
                    continue
            self._nudged.clear()
            try:
                self.send_due()
                left_s = LOOK_EVERY_S
            except Unavailable as error:
                log.warning("no alert sent", reason=str(error))
                left_s = _AFTER_TROUBLE_S
            except Exception:
                log.exception("alerts not sent")
                left_s = _AFTER_TROUBLE_S
        self.close()

    def close(self) -> None:
        """Returns when nothing is under way any more."""
        self._pool.shutdown(wait=True)

    def send_due(self) -> int:
        """Number of attempts begun now, each in a thread.

        Raises:
            StoreUnavailable: the outbox cannot be read.
        """
        self._under_way = {each for each in self._under_way if not each.done()}
        room = AT_ONCE - len(self._under_way)
        due = self._claim(room) if room else []
        for delivery, endpoint, now_s in due:
            self._under_way.add(self._pool.submit(self._attempt, delivery, endpoint, now_s))
        return len(due)

    def settle(self) -> None:
        """Returns when all attempts that have begun are over."""
        wait(self._under_way)

    def _claim(self, room: int) -> Sequence[tuple[Delivery, Endpoint, float]]:
        with self._desk.store.read() as conn:
            # Most of the time nothing is due, and who only reads holds up nobody.
            if not outbox.has_due(conn, now_s=self._desk.database_time(conn)):
                return []
        with self._desk.store.write() as conn:
            now_s = self._desk.database_time(conn)
            claimed = outbox.claim(conn, now_s=now_s, lease_s=CLAIM_S, limit=room)
            # Asked again: a silence that began while we waited for others holds, too.
            due = not_silenced(conn, claimed, self._desk.database_time(conn))
            receivers = endpoints.of_ids(conn, [each.endpoint_id for each in due])
        return [(each, receivers[each.endpoint_id], now_s) for each in due]

    def _attempt(self, delivery: Delivery, endpoint: Endpoint, now_s: float) -> None:
        try:
            answer = self._sent(delivery, endpoint, now_s)
            self._write_down(delivery, endpoint, answer, began_s=now_s)
        except Unavailable as error:
            # Its claim lapses, and it is sent again under the same id.
            log.warning("attempt not written down", reason=str(error))
        except Exception:
            log.exception("attempt not written down", delivery=delivery.delivery_id)
        finally:
            self.nudge()  # what waited for this one

    def _sent(self, delivery: Delivery, endpoint: Endpoint, now_s: float) -> Answer:
        try:
            message = _message(delivery, endpoint)
            return send.send(self._desk.transport, endpoint, message, delivery.delivery_id, now_s)
        except Exception:
            # One that cannot be sent must not be tried for ever, nor be the end of all others.
            log.exception("alert not sent", delivery=delivery.delivery_id)
            return Answer(None, "an error of Paceline's own: its log has the traceback")

    def _write_down(
        self, delivery: Delivery, endpoint: Endpoint, answer: Answer, *, began_s: float
    ) -> None:
        with self._desk.store.write() as conn:
            now_s = self._desk.database_time(conn)
            attempts.add(
                conn,
                delivery.delivery_id,
                delivery.attempt,
                began_s,
                answer.took_s,
                answer.status,
                answer.detail,
            )
            if answer.is_success:
                # The endpoint first, as whoever claims locks it first.
                endpoints.succeeded(conn, delivery.endpoint_id, now_s)
                outbox.delivered(conn, delivery, now_s=now_s)
            else:
                self._failed(conn, delivery, endpoint, answer, now_s)
        log.info(
            "alert attempt",
            delivery=delivery.delivery_id,
            endpoint=delivery.endpoint_id,
            attempt=delivery.attempt,
            detail=answer.detail,
        )

    def _failed(
        self,
        conn: Connection,
        delivery: Delivery,
        endpoint: Endpoint,
        answer: Answer,
        now_s: float,
    ) -> None:
        is_first = endpoint.format == "slack" and delivery.attempt == 1
        if is_first and slack.is_image_refused(delivery.payload, answer.status):
            # No trouble of the receiver, nor one that waiting mends: at once, without the image.
            outbox.failed(conn, delivery, detail=answer.detail, next_at_s=now_s, now_s=now_s)
            return
        delay_s = next_delay_s(
            delivery.attempt,
            self._desk.rng,
            retry_after_s=parse_retry_after(answer.retry_after, now_s=now_s),
            is_overloaded=answer.is_overloaded,
        )
        is_final = delay_s is None or answer.status == GONE
        next_at_s = None if is_final or delay_s is None else now_s + delay_s
        health = endpoints.failed(conn, delivery.endpoint_id, detail=answer.detail, now_s=now_s)
        outbox.failed(conn, delivery, detail=answer.detail, next_at_s=next_at_s, now_s=now_s)
        reason = reason_to_disable(
            status=answer.status,
            failures=health.failures,
            failing_since_s=health.failing_since_s,
            now_s=now_s,
        )
        if reason is not None:
            give_up(conn, self._desk, delivery, endpoint, reason, now_s)


def _message(delivery: Delivery, endpoint: Endpoint) -> Message:
    body = delivery.payload
    if endpoint.format == "slack" and delivery.attempt > 1:
        body = slack.without_image(body)
    return Message(body, delivery.content_type, delivery.headers, delivery.subject)
