"""Delivers the buffer's batches from a background thread, with retries."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..recording.buffer import REFUSED, SPOOL_DAMAGED, UNDELIVERED, Buffer, empty_content
from ..recording.sampling import RecordingPlans
from ..recording.wire import (
    CONTENT_TYPE,
    Batch,
    GroupBatch,
    Worker,
    batch_of,
    content_encoding,
    encode,
)
from .contact import FirstContact, advice_on
from .registration import Refused, Registered, register_with
from .retry import Backoff, RetryPolicy
from .spool import Outbox
from .transport import TIMEOUT_S, Answer, Transport, Unreachable, job_path

__all__ = ["Backoff", "Sender"]

MAX_ERRORS = 20  # server errors for one batch, after which it is dropped
# While no step is recorded, only heartbeats bring new recording plans.
HEARTBEAT_EVERY_S = 10.0
FIRST_TIMEOUT_S = 3.0  # of the first registration: a frozen server is to be noticed early
SETTLE_EVERY_S = 1.0  # resolving GPU times while the outbox is full
SUPERSEDED = "superseded by a newer run"

log = logging.getLogger("paceline_client")


class Sender:
    """Sends one worker's batches in order, each until the server has accepted or refused it."""

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
        outbox: Outbox | None = None,
        plans: RecordingPlans | None = None,
        chores: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._transport = transport
        self._job = job
        self._worker = worker
        self._buffer = buffer
        self._request = request
        self._registers = epoch is None
        self._registered = None if epoch is None else Registered(epoch, frozenset(), {})
        self._attempts = RetryPolicy(backoff)
        self._outbox = outbox or Outbox()
        self._plans = plans or RecordingPlans()
        self._chores = chores  # called often on this thread; each decides when it is due
        self._body: bytes | None = None  # of the head; equal for each attempt
        self._may_be_there = False  # whether the server may have the head already
        self._is_plain = False  # whether the head is sent without extensions
        self._is_unknown = False  # whether the server did not know the job just now
        self._errors = 0
        self.heartbeat_every_s = HEARTBEAT_EVERY_S
        self._answered_s = time.monotonic()  # last acceptance
        self._wants_now = False
        self._over: str | None = None  # why the server wants nothing more of this recorder
        self._warned = False
        self._has_tried = False  # to register
        self.on_registered: Callable[[int], None] = lambda epoch: None
        self._contact = FirstContact(transport.address, worker)
        self._thread = threading.Thread(target=self._run, name="paceline-sender", daemon=True)

    def start(self) -> None:
        """Start the thread; if the process can have no more threads, nothing is recorded."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._buffer.abandon()
            self._warn(f"nothing is recorded: {error}")

    def hurry(self) -> None:
        """Retry at once, regardless of backoff."""
        self._wants_now = True
        self._buffer.wake()

    def finish(self) -> None:
        """Close the buffer, abort a request in flight, spool or drop the rest, and end."""
        self._buffer.close()
        self._transport.abort()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end, after the buffer is closed and empty."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._outbox.open()
            if self._registered is not None:
                self._tell_registered(self._registered.epoch)
            while self._over is None and not self._buffer.closed:
                self._collect()
                if self._is_due():
                    self._attempt()
                else:
                    self._wait()
            self._last_round()
        except Exception as error:
            self._warn(f"stopped: {error!r}")
        try:
            self._end()
        except Exception as error:  # a thread's uncaught error would be printed beside training's
            self._warn(f"stopped: {error!r}")

    def _last_round(self) -> None:
        """After the close: one attempt per batch, until one fails."""
        while self._over is None and not self._attempts.is_waiting:
            self._collect()
            if self._outbox.head() is None:
                return
            self._attempt()

    def _end(self) -> None:
        reason = self._over or UNDELIVERED
        try:
            self._collect_the_rest()
        except Exception as error:  # again, if a chore ended the recording
            self._warn(f"stopped: {error!r}")
        try:
            lost = self._outbox.close(keep=self._over != SUPERSEDED)
            if lost:
                self._buffer.count_dropped(reason, lost)
        finally:
            self._buffer.abandon(reason)
            self._transport.close()
            if self._over is None and (self._registered is None or self._buffer.dropped):
                self._contact.ended()

    def _collect_the_rest(self) -> None:
        while self._over is None and self._outbox.has_room and self._collect(at_once=True):
            pass

    def _collect(self, *, at_once: bool = False) -> bool:
        """Move a due batch (with `at_once`, any) to the outbox; whether there was one and room."""
        for chore in self._chores:
            chore()
        if self._buffer.groups is not None and self._buffer.groups.poll_reader():
            self._buffer.hurry()
        if not self._outbox.has_room:
            self._buffer.settle()
            return False
        is_heartbeat_due = self._is_heartbeat_due()
        is_due = at_once or is_heartbeat_due or self._buffer.is_due()
        taken = self._buffer.take() if is_due else None
        rows = self._take_groups() if is_due else None
        if taken is None and rows is not None:
            taken = empty_content()
        at_step = None
        if taken is None and is_heartbeat_due:
            self._buffer.has_gone_on = False
            taken, at_step = empty_content(), self._buffer.at_step
        if taken is None:
            self._settle()
            return False
        asides = taken.steps & self._buffer.asides.keys()
        self._outbox.put(
            batch_of(
                taken.ops,
                taken.steps_done,
                taken.step_kinds,
                self._buffer.dropped,
                at_step,
                asides,
                taken.waits_done,
                rows,
            )
        )
        return True

    def _take_groups(self) -> GroupBatch | None:
        groups = self._buffer.groups
        if groups is None:
            return None
        rows = groups.take()
        for reason, number in list(groups.dropped.items()):
            del groups.dropped[reason]
            self._buffer.count_dropped(reason, number)
        return rows

    def _is_heartbeat_due(self) -> bool:
        is_late = time.monotonic() - self._answered_s >= self.heartbeat_every_s
        return is_late and self._buffer.has_gone_on and self._outbox.head() is None

    def _is_due(self) -> bool:
        if self._registered is not None and self._outbox.head() is None:
            return False
        if self._wants_now:
            self._wants_now = False
            return True
        return not self._attempts.is_waiting

    def _wait(self) -> None:
        has_work = self._registered is None or self._outbox.head() is not None
        timeout_s = self._attempts.wait_s() if has_work else self.heartbeat_every_s
        has_room = self._outbox.has_room
        groups = self._buffer.groups
        if not has_room or (groups is not None and groups.has_unread):
            timeout_s = min(timeout_s, SETTLE_EVERY_S)
        self._buffer.wait(timeout_s, for_items=has_room)

    def _attempt(self) -> None:
        """One request: register the run, or send the batch at the head."""
        self._contact.trying()
        if self._registered is None:
            self._register()
            return
        batch = self._outbox.head()
        body = self._body_of(batch, self._registered) if batch is not None else None
        if batch is None or body is None:
            return
        try:
            answer = self._transport.request(
                "POST", job_path(self._job, "/ops"), body, CONTENT_TYPE, content_encoding(body)
            )
        except Unreachable as error:
            self._may_be_there = True
            self._attempts.failed()
            self._contact.failed(str(error))
            return
        self._apply_answer(batch, answer)

    def _register(self) -> None:
        self._transport.timeout_s = TIMEOUT_S if self._has_tried else FIRST_TIMEOUT_S
        self._has_tried = True
        try:
            self._registered = register_with(self._transport, self._job, self._request)
        except Refused as refused:
            if refused.answer.retryable:
                self._attempts.failed(refused.answer.retry_after_s)
                self._contact.failed(f"job {self._job!r} cannot be registered yet: {refused}")
                return
            self._over = REFUSED
            self._warn(
                f"job {self._job!r} cannot be registered, so nothing is recorded: {refused}. "
                f"{advice_on(refused.answer.status)}"
            )
            return
        except Unreachable as error:
            self._attempts.failed()
            self._contact.failed(str(error))
            return
        finally:
            self._transport.timeout_s = TIMEOUT_S
        self._attempts.succeeded()
        self._contact.succeeded()
        self._tell_registered(self._registered.epoch)
        if self._registered.is_new:
            self._outbox.next_seq = 0
            self._plans.forget()
        self._plans.update(self._registered.answer)

    def _tell_registered(self, epoch: int) -> None:
        try:
            self.on_registered(epoch)
        except Exception:  # how the process ends stays untold; its operations are sent all the same
            log.debug("paceline: the end of this process will not be reported", exc_info=True)

    def _body_of(self, batch: Batch, registered: Registered) -> bytes | None:
        if self._body is None:
            seq = self._outbox.next_seq
            if self._worker.is_alone and (
                self._is_plain or "collectives" not in registered.accepts
            ):
                # A server without this extension would wait for this rank's steps.
                self._warn("the server does not accept group collectives: this rank sends nothing")
                self._give_up(batch, used_seq=False)
                return None
            try:
                accepts = frozenset() if self._is_plain else registered.accepts
                body = encode(self._worker, registered.epoch, seq, batch, accepts)
            except Exception as error:
                self._warn(f"dropped operations that cannot be encoded: {error!r}")
                self._give_up(batch, used_seq=False)
                return None
            self._body = body
            self._attempts.first()
        return self._body

    def _apply_answer(self, batch: Batch, answer: Answer) -> None:
        if answer.is_acceptance:
            self._answered_s = time.monotonic()
            self._attempts.succeeded()
            self._contact.succeeded()
            self._count_rejected(batch, answer)
            self._plans.update(answer.json())
            self._is_unknown = False
            if self._is_plain:  # register again to learn what this server accepts
                self._registered = None
            self._next(used_seq=True)
            return
        self._errors += answer.is_of_a_proxy or answer.status in (500, 501) or answer.status > 504
        # After an unexpected answer the server may or may not have the batch.
        self._may_be_there = self._may_be_there or answer.ok or answer.status >= 500
        if answer.retryable and self._errors < MAX_ERRORS:
            self._attempts.failed(answer.retry_after_s)
            self._contact.failed(answer.detail, is_answer=True)
            return
        self._attempts.succeeded()
        self._contact.succeeded()
        if self._may_retry(answer):
            self._body = None
            return
        # A batch number that the server may know must not be reused for other operations.
        self._give_up(batch, used_seq=self._may_be_there)
        self._refused(answer)

    def _may_retry(self, answer: Answer) -> bool:
        """Whether a different server may accept the head, registered anew or without extensions."""
        registered = self._registered
        if not self._registers or registered is None:
            return False
        if answer.status == 404 and not self._is_unknown:  # removed, or older than the job
            self._is_unknown, self._registered = True, None
            return True
        if answer.status in (400, 415, 422) and registered.accepts and not self._is_plain:
            self._is_plain = True  # an older version without extensions
            return True
        return False

    def _give_up(self, batch: Batch, *, used_seq: bool) -> None:
        num_lost = batch.num_ops + batch.num_group_rows
        self._buffer.lost(batch.steps, batch.done, num_lost, REFUSED)
        self._next(used_seq=used_seq)

    def _next(self, *, used_seq: bool) -> None:
        self._outbox.pop(used_seq=used_seq)
        self._body = None
        self._may_be_there = self._is_plain = False
        self._errors = 0
        self._settle()

    def _settle(self) -> None:
        if self._outbox.head() is None:
            self._buffer.sent()
        if self._outbox.damaged_ops:
            self._buffer.count_dropped(SPOOL_DAMAGED, self._outbox.damaged_ops)
            self._outbox.damaged_ops = 0

    def _count_rejected(self, batch: Batch, answer: Answer) -> None:
        fields = answer.json()
        rejected, errors = fields.get("rejected"), fields.get("errors")
        if isinstance(rejected, int) and not isinstance(rejected, bool) and rejected > 0:
            rejected = min(rejected, batch.num_ops + batch.num_group_rows)
            self._buffer.count_dropped(REFUSED, rejected)
            self._warn(f"the server refused {rejected} operations of a batch: {errors!r:.300}")

    def _refused(self, answer: Answer) -> None:
        self._warn(f"the server refused operations of job {self._job!r}: {answer.detail}")
        if answer.status == 409:  # a newer run has registered
            self._over = SUPERSEDED

    def _warn(self, message: str) -> None:
        if not self._warned and self._contact.speaks:
            log.warning("paceline: %s (further warnings are left out)", message)
            self._warned = True
