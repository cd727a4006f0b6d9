"""Delivers the buffer's batches from a background thread, for as long as it takes."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Mapping
from typing import Any

from .buffer import Buffer, Taken
from .registration import Refused, register_with
from .transport import Answer, Transport, Unreachable, job_path
from .wire import CONTENT_TYPE, Worker, encode_batch

log = logging.getLogger("paceline_client")


class Backoff:
    """Growing delays between attempts, each drawn at random so that workers spread out."""

    def __init__(self, first_s: float = 0.5, last_s: float = 30.0) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._attempts = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Delay before the next attempt; `at_least_s` is what the server asked for."""
        most_s = min(self._last_s, self._first_s * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 30)
        return max(at_least_s, random.uniform(0.0, most_s))  # noqa: S311

    def reset(self) -> None:
        """Begin again with short delays."""
        self._attempts = 0


class Sender:
    """One worker's batches, in order, each until the server has taken or refused it."""

    def __init__(
        self,
        transport: Transport,
        job: str,
        worker: Worker,
        buffer: Buffer,
        *,
        request: Mapping[str, Any],
        epoch: int | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._transport = transport
        self._job = job
        self._worker = worker
        self._buffer = buffer
        self._request = request
        self._epoch = epoch
        self._backoff = backoff or Backoff()
        self._batch_seq = 0
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="paceline-sender", daemon=True)

    def start(self) -> None:
        """Begin in the background; a process that can have no more threads records nothing."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._buffer.abandon()
            self._warn(f"nothing is recorded: {error}")

    def join(self, timeout_s: float) -> None:
        """Wait for the end, which comes when the buffer is closed and empty."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            epoch = self._registered()
            while epoch is not None:
                taken = self._buffer.take()
                if taken is None:
                    break
                self._deliver(epoch, taken)
        except Exception as error:
            self._warn(f"stopped: {error!r}")
        finally:
            self._buffer.abandon()
            self._transport.close()

    def _registered(self) -> int | None:
        while self._epoch is None:
            try:
                self._epoch = register_with(self._transport, self._job, self._request)
            except Refused as refused:
                if not self._may_retry(refused.answer):
                    self._warn(f"job {self._job!r} cannot be registered: {refused}")
                    return None
            except Unreachable:
                if not self._may_retry(None):
                    return None
        self._backoff.reset()
        return self._epoch

    def _deliver(self, epoch: int, taken: Taken) -> None:
        if not taken.ops and not taken.steps_done:
            self._buffer.sent()
            return
        try:
            body = encode_batch(self._worker, epoch, self._batch_seq, taken.steps_done, taken.ops)
        except Exception as error:
            self._buffer.lost(taken)
            self._warn(f"dropped operations that cannot be sent: {error!r}")
            return
        answer = self._answer_to(body)
        if answer is not None and answer.ok:
            self._batch_seq += 1
            self._buffer.sent()
            self._count_rejected(answer)
            return
        self._buffer.lost(taken)
        if answer is not None:
            self._refused(answer)

    def _answer_to(self, body: bytes) -> Answer | None:
        """The final answer; None if the recorder was closed before there was one."""
        path = job_path(self._job, "/ops")
        may_be_there = False
        while True:
            answer: Answer | None = None
            try:
                answer = self._transport.request("POST", path, body, CONTENT_TYPE)
            except Unreachable:
                may_be_there = True
            if answer is not None and not answer.retryable:
                self._backoff.reset()
                # A number that the server may know must not come back with other operations.
                self._batch_seq += may_be_there and not answer.ok
                return answer
            if not self._may_retry(answer):
                return None

    def _may_retry(self, answer: Answer | None) -> bool:
        """Waits for the next attempt; False if there is none."""
        if answer is not None and not answer.retryable:
            return False
        delay_s = self._backoff.next_s(answer.retry_after_s if answer else 0.0)
        return not self._buffer.is_closed_within(delay_s)

    def _count_rejected(self, answer: Answer) -> None:
        fields = answer.json()
        rejected, errors = fields.get("rejected"), fields.get("errors")
        if isinstance(rejected, int) and rejected > 0:
            self._buffer.refused(rejected)
            self._warn(f"the server refused {rejected} operations of a batch: {errors!r:.300}")

    def _refused(self, answer: Answer) -> None:
        self._warn(f"the server refused operations of job {self._job!r}: {answer.detail}")
        if answer.status == 409:  # a newer run has registered: nothing of ours is wanted
            self._buffer.abandon()

    def _warn(self, message: str) -> None:
        if not self._warned:
            log.warning("paceline: %s (further warnings are left out)", message)
            self._warned = True
