"""Sends what the outbox holds: claim, POST, write down how it went."""

import random
import threading
import time
from collections.abc import Callable

import structlog

from app.alerts.delivery import Client, Endpoint, Outcome, deliver
from app.errors import Unavailable
from app.store import outbox
from app.store.engine import Store
from app.store.outbox import Delivery

log = structlog.get_logger()

_LOOK_EVERY_S = 1.0
_AFTER_TROUBLE_S = 5.0
# Longer than all attempts of one claim can take; then another sender may try.
_CLAIM_S = 60.0
_AT_ONCE = 2


class Sender:
    """Delivers alerts to one endpoint; any number of senders share one outbox."""

    def __init__(
        self,
        store: Store,
        endpoint: Endpoint,
        client: Client,
        *,
        unix_time: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self._client = client
        self._unix_time = unix_time
        # Spreads retries over time; nobody gains by guessing it.
        self._rng = rng or random.Random()  # noqa: S311

    def run(self, stop: threading.Event) -> None:
        """Deliver whatever is due until `stop` is set."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            try:
                pause_s = 0.0 if self.send_due() else _LOOK_EVERY_S
            except Unavailable as error:
                log.warning("no alert sent", reason=str(error))
                pause_s = _AFTER_TROUBLE_S
            except Exception:
                # Its claim lapses; one that cannot be sent must not be the end of all others.
                log.exception("alert not sent")
                pause_s = _AFTER_TROUBLE_S

    def send_due(self) -> int:
        """Number of attempts made now.

        Raises:
            StoreUnavailable: the outbox cannot be read.
        """
        with self._store.write() as conn:
            due = outbox.claim(conn, now_s=self._unix_time(), lease_s=_CLAIM_S, limit=_AT_ONCE)
        for delivery in due:
            self._attempt(delivery)
        return len(due)

    def _attempt(self, delivery: Delivery) -> None:
        if delivery.endpoint != self._endpoint.url:
            outcome = Outcome("given up", "the endpoint is no longer configured")
        else:
            outcome = deliver(
                self._client,
                self._endpoint,
                delivery_id=delivery.delivery_id,
                payload=delivery.payload,
                attempt=delivery.attempt,
                now_s=self._unix_time(),
                rng=self._rng,
            )
        self._write_down(delivery, outcome)

    def _write_down(self, delivery: Delivery, outcome: Outcome) -> None:
        now_s = self._unix_time()
        log.info(
            "alert attempt",
            delivery=delivery.delivery_id,
            attempt=delivery.attempt,
            result=outcome.result,
            detail=outcome.detail,
        )
        with self._store.write() as conn:
            if outcome.result == "delivered":
                outbox.delivered(conn, delivery, now_s=now_s)
            else:
                outbox.failed(
                    conn, delivery, detail=outcome.detail, next_at_s=outcome.next_at_s, now_s=now_s
                )
