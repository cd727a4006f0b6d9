"""Delivers the buffer's batches from a background thread, for as long as it takes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .buffer import REFUSED, SPOOL_DAMAGED, UNDELIVERED, Buffer, nothing_taken
from .groups import GroupBatch
from .outbox import Outbox
from .registration import Refused, Registered, register_with
from .retry import Attempts, Backoff
from .sampling import Plans
from .transport import Answer, Transport, Unreachable, job_path
from .wire import CONTENT_TYPE, Batch, Worker, batch_of, encode

__all__ = ["Backoff", "Sender"]

MAX_ERRORS = 20  # answers that the server has failed over one batch, until it is dropped
# Where no step is recorded nothing is sent, and so nothing would be heard of a new plan.
BEAT_EVERY_S = 10.0
SETTLE_EVERY_S = 1.0  # what the GPU has done, while there is no room for more
SUPERSEDED = "superseded by a newer run"

log = logging.getLogger("paceline_client")


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
        outbox: Outbox | None = None,
        plans: Plans | None = None,
        chores: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._transport = transport
        self._job = job
        self._worker = worker
        self._buffer = buffer
        self._request = request
        self._registers = epoch is None
        self._registered = None if epoch is None else Registered(epoch, frozenset(), {})
        self._attempts = Attempts(backoff)
        self._outbox = outbox or Outbox()
        self._plans = plans or Plans()
        self._chores = chores  # done on this thread now and then; they decide themselves when
        self._body: bytes | None = None  # of the head, the same each time that it is sent
        self._may_be_there = False
        self._is_plain = False  # the head, as a server without extensions reads it
        self._is_unknown = False  # the job, to a server that has it registered anew
        self._errors = 0
        self.beat_every_s = BEAT_EVERY_S
        self._heard_s = time.monotonic()  # when the server has answered
        self._wants_now = False
        self._over: str | None = None  # why nothing more is wanted of this recorder
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="paceline-sender", daemon=True)

    def start(self) -> None:
        """Begin in the background; a process that can have no more threads records nothing."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._buffer.abandon()
            self._warn(f"nothing is recorded: {error}")

    def hurry(self) -> None:
        """Try once more at once, whatever the last failure was."""
        self._wants_now = True
        self._buffer.wake()

    def finish(self) -> None:
        """Take nothing more, let go of what hangs, keep or drop the rest, and end."""
        self._buffer.close()
        self._transport.abort()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, which comes when the buffer is closed and empty."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._outbox.open()
            while self._over is None and not self._buffer.closed:
                self._collect()
                if self._is_due():
                    self._attempt()
                else:
                    self._wait()
            self._last_round()
        except Exception as error:
            self._warn(f"stopped: {error!r}")
        finally:
            self._end()

    def _last_round(self) -> None:
        """Closed: every batch has one more chance, until one fails."""
        while self._over is None and not self._attempts.is_waiting:
            self._collect()
            if self._outbox.head() is None:
                return
            self._attempt()

    def _end(self) -> None:
        reason = self._over or UNDELIVERED
        try:
            self._collect_the_rest()
        except Exception as error:  # once more, where it was a chore that ended the recording
            self._warn(f"stopped: {error!r}")
        try:
            lost = self._outbox.close(keep=self._over != SUPERSEDED)
            if lost:
                self._buffer.count_dropped(reason, lost)
        finally:
            self._buffer.abandon(reason)
            self._transport.close()

    def _collect_the_rest(self) -> None:
        while self._over is None and self._outbox.has_room and self._collect(at_once=True):
            pass

    def _collect(self, *, at_once: bool = False) -> bool:
        """Whether something in the buffer was due (or there `at_once`), and had room."""
        for chore in self._chores:
            chore()
        if self._buffer.groups is not None and self._buffer.groups.look_beside():
            self._buffer.hurry()
        if not self._outbox.has_room:
            self._buffer.settle()
            return False
        owes_a_beat = self._owes_a_beat()
        is_due = at_once or owes_a_beat or self._buffer.is_due()
        taken = self._buffer.take() if is_due else None
        rows = self._take_groups() if is_due else None
        if taken is None and rows is not None:
            taken = nothing_taken()
        at_step = None
        if taken is None and owes_a_beat:
            self._buffer.has_gone_on = False
            taken, at_step = nothing_taken(), self._buffer.at_step
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

    def _owes_a_beat(self) -> bool:
        is_late = time.monotonic() - self._heard_s >= self.beat_every_s
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
        timeout_s = self._attempts.wait_s() if has_work else self.beat_every_s
        has_room = self._outbox.has_room
        groups = self._buffer.groups
        if not has_room or (groups is not None and groups.has_unread):
            timeout_s = min(timeout_s, SETTLE_EVERY_S)
        self._buffer.wait(timeout_s, for_items=has_room)

    def _attempt(self) -> None:
        """One request: that which registers the run, or that with the batch at the head."""
        if self._registered is None:
            self._register()
            return
        batch = self._outbox.head()
        body = self._body_of(batch, self._registered) if batch is not None else None
        if batch is None or body is None:
            return
        try:
            answer = self._transport.request(
                "POST", job_path(self._job, "/ops"), body, CONTENT_TYPE, body[:2] == b"\x1f\x8b"
            )
        except Unreachable:
            self._may_be_there = True
            self._attempts.failed()
            return
        self._heard(batch, answer)

    def _register(self) -> None:
        try:
            self._registered = register_with(self._transport, self._job, self._request)
        except Refused as refused:
            if refused.answer.retryable:
                self._attempts.failed(refused.answer.retry_after_s)
                if self._attempts.is_broken:
                    self._warn(f"job {self._job!r} cannot be registered so far: {refused}")
                return
            self._over = REFUSED
            self._warn(f"job {self._job!r} cannot be registered: {refused}")
            return
        except Unreachable:
            self._attempts.failed()
            return
        self._attempts.succeeded()
        if self._registered.is_new:
            self._outbox.next_seq = 0
            self._plans.forget()
        self._plans.hear(self._registered.answer)

    def _body_of(self, batch: Batch, registered: Registered) -> bytes | None:
        if self._body is None:
            seq = self._outbox.next_seq
            if self._worker.is_alone and (
                self._is_plain or "collectives" not in registered.accepts
            ):
                # A server that knows no such ranks would wait for their steps.
                self._warn(
                    "the server takes no collectives of groups: nothing is sent by this rank"
                )
                self._give_up(batch, used_seq=False)
                return None
            try:
                accepts = frozenset() if self._is_plain else registered.accepts
                body = encode(self._worker, registered.epoch, seq, batch, accepts)
            except Exception as error:
                self._warn(f"dropped operations that cannot be sent: {error!r}")
                self._give_up(batch, used_seq=False)
                return None
            self._body = body
            self._attempts.first()
        return self._body

    def _heard(self, batch: Batch, answer: Answer) -> None:
        if answer.is_acceptance:
            self._heard_s = time.monotonic()
            self._attempts.succeeded()
            self._count_rejected(batch, answer)
            self._plans.hear(answer.json())
            self._is_unknown = False
            if self._is_plain:  # ask what this server accepts
                self._registered = None
            self._next(used_seq=True)
            return
        self._errors += answer.is_of_a_proxy or answer.status in (500, 501) or answer.status > 504
        # Of an answer that makes no sense nobody knows who gave it, or what happened to the batch.
        self._may_be_there = self._may_be_there or answer.ok or answer.status >= 500
        if answer.retryable and self._errors < MAX_ERRORS:
            self._attempts.failed(answer.retry_after_s)
            return
        self._attempts.succeeded()
        if self._is_worth_another(answer):
            self._body = None
            return
        # A number that the server may know must not come back with other operations.
        self._give_up(batch, used_seq=self._may_be_there)
        self._refused(answer)

    def _is_worth_another(self, answer: Answer) -> bool:
        """Whether a server that is not the one which has registered us may take the head yet."""
        registered = self._registered
        if not self._registers or registered is None:
            return False
        if answer.status == 404 and not self._is_unknown:  # removed, or older than the job
            self._is_unknown, self._registered = True, None
            return True
        if answer.status in (400, 415, 422) and registered.accepts and not self._is_plain:
            self._is_plain = True  # it may be of a version that knows no extension
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
        if answer.status == 409:  # a newer run has registered: nothing of ours is wanted
            self._over = SUPERSEDED

    def _warn(self, message: str) -> None:
        if not self._warned:
            log.warning("paceline: %s (further warnings are left out)", message)
            self._warned = True
