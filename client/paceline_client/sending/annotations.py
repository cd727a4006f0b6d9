"""Annotations of a job (deploys, checkpoints, notes) on their way to the server.

`AnnotationOutbox` holds a few of them; the sender's thread sends them beside the batches.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from .retry import Backoff, RetryPolicy
from .transport import Transport, Unreachable, job_path

MAX_WAITING = 64  # with one more, the oldest is dropped
MAX_TEXT = 500
MAX_ATTEMPTS = 20
_NS_PER_S = 1_000_000_000

log = logging.getLogger("paceline_client")


class AnnotationOutbox:
    """Annotations that wait to be sent; `dropped` counts those that never were.

    Any thread may add one; only the sender's thread calls `poll`.
    """

    def __init__(self, transport: Transport, job: str, backoff: Backoff | None = None) -> None:
        self._transport = transport
        self._path = job_path(job, "/annotations")
        self._waiting: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._policy = RetryPolicy(backoff)
        self._attempts = 0  # of the first one that waits
        self._warned = False
        self.wake: Callable[[], None] = lambda: None  # of the sender's thread
        self.dropped = 0

    def add(
        self,
        kind: str,
        text: str,
        *,
        at_ns: int,
        step: int | None = None,
        host: str | None = None,
    ) -> None:
        """Add an annotation; `at_ns` are nanoseconds since 1970."""
        at = datetime.fromtimestamp(at_ns / _NS_PER_S, timezone.utc)
        body: dict[str, Any] = {
            "kind": str(kind),
            "text": _one_line(text)[:MAX_TEXT],
            "at": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "source": "client",
            "idempotency_key": uuid.uuid4().hex,
        }
        if step is not None:
            body["step"] = step
        if host is not None:
            body["host"] = _one_line(host)
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.popleft()
                self.dropped += 1
                self._attempts = 0
            self._waiting.append(body)
        self.wake()

    def poll(self) -> None:
        """Send what waits, until an attempt fails; the next one is made when it is due."""
        while self._waiting and not self._policy.is_waiting:
            with self._lock:
                body = self._waiting[0]
            try:
                may_go_on = self._send(body)
            except Exception as error:  # a text that cannot be encoded, say
                self._drop(body, repr(error))
                continue
            if not may_go_on:
                return

    def _send(self, body: dict[str, Any]) -> bool:
        """Make one attempt; whether the next annotation may be sent now."""
        self._attempts += 1
        if self._attempts == 1:
            self._policy.first()
        try:
            answer = self._transport.request("POST", self._path, body, "application/json")
        except Unreachable:
            return self._failed(body, "no answer")
        if answer.ok and "annotation_id" in answer.json():
            self._policy.succeeded()
            self._remove(body)
            return True
        # Until the run has registered, the server does not know the job.
        if answer.retryable or answer.status == 404:
            return self._failed(body, answer.detail, answer.retry_after_s)
        self._policy.succeeded()
        self._drop(body, answer.detail)
        return True

    def _failed(self, body: dict[str, Any], reason: str, retry_after_s: float = 0.0) -> bool:
        self._policy.failed(retry_after_s)
        if self._attempts >= MAX_ATTEMPTS:
            self._drop(body, reason)
        return False

    def _drop(self, body: dict[str, Any], reason: str) -> None:
        self._remove(body)
        self.dropped += 1
        if not self._warned:
            self._warned = True
            log.warning(
                "paceline: an annotation was dropped: %s (further warnings are left out)", reason
            )

    def _remove(self, body: dict[str, Any]) -> None:
        with self._lock:
            # Of a full deque it may have been dropped meanwhile.
            if self._waiting and self._waiting[0] is body:
                self._waiting.popleft()
        self._attempts = 0


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in str(text)).strip()
