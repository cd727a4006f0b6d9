"""Records how long a training worker's operations take; never raises or blocks into training."""

from __future__ import annotations

import atexit
import functools
import logging
import socket
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from .buffer import DEFAULT_MAX_OPS, Buffer, forget_oldest
from .registration import Sizes, registration
from .sender import Backoff, Sender
from .transport import Transport
from .wire import NOTHING, Worker, told_of

EXIT_S = 2.0  # for all recorders of the process together

log = logging.getLogger("paceline_client")
CallT = TypeVar("CallT", bound=Callable[..., Any])


def _harmless(method: CallT) -> CallT:
    """The method, with every error logged in place of raised."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception:
            log.debug("paceline: nothing was recorded", exc_info=True)
            return None

    return cast(CallT, call)


class Begun(NamedTuple):
    """An operation that has begun."""

    optype: str
    step: int
    start_ns: int
    seq_id: int
    mc: int
    mb_id: int
    told: dict[str, Any]


class Recorder:
    """One worker's recorder; `dropped` counts the operations that could not be delivered."""

    def __init__(self, buffer: Buffer, sender: Sender) -> None:
        self._buffer = buffer
        self._sender = sender
        # One look at the wall clock: it may be set back while we run, the other never is.
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._num_begun: dict[int, dict[str, int]] = {}
        self._step = 0
        _live.add(self)

    @property
    def dropped(self) -> int:
        """Number of operations that were dropped."""
        return self._buffer.dropped

    def op(
        self,
        optype: str,
        *,
        step: int | None = None,
        microbatch: int = -1,
        chunk: int = -1,
        **told: int,
    ) -> TimedOp:
        """Times what stands in its `with` block; the step is the one of `with step(...)`.

        `told` is any of `tokens`, `seq_len_sq`, `bytes`, `sm_clock_mhz` and `temperature_c`.
        """
        return TimedOp(self, optype, step, microbatch, chunk, told)

    def step(self, step: int) -> TimedStep:
        """Declares the step finished at the end of its `with` block."""
        return TimedStep(self, step)

    @_harmless
    def begin(
        self,
        optype: str,
        *,
        step: int | None = None,
        microbatch: int = -1,
        chunk: int = -1,
        **told: int,
    ) -> Begun | None:
        """An operation begins now; hand the result to `end`."""
        step = self._step if step is None else step
        seq_id = self._next_seq_id(step, optype)
        return Begun(optype, step, self._now_ns(), seq_id, chunk, microbatch, told)

    @_harmless
    def end(self, begun: Begun | None, **told: int) -> None:
        """The operation ends now; `told` as with `op`, over what was told at its beginning."""
        if begun is not None:
            optype, step, start_ns, seq_id, mc, mb_id, before = begun
            duration_ns = self._now_ns() - start_ns
            about = told_of({**before, **told}) if before or told else NOTHING
            self._buffer.add((step, optype, start_ns, duration_ns, seq_id, mc, mb_id, about))

    @_harmless
    def record(
        self,
        optype: str,
        step: int,
        start_ns: int,
        duration_ns: int,
        seq_id: int | None = None,
        mc: int = -1,
        mb_id: int = -1,
        **told: int,
    ) -> None:
        """An operation that was timed elsewhere; in order of start where `seq_id` is left out."""
        if seq_id is None:
            seq_id = self._next_seq_id(step, optype)
        about = told_of(told) if told else NOTHING
        self._buffer.add((step, optype, start_ns, duration_ns, seq_id, mc, mb_id, about))

    @_harmless
    def step_done(self, step: int) -> None:
        """This worker has recorded all of the step's operations."""
        self._num_begun.pop(step, None)
        self._buffer.step_done(step)

    @_harmless
    def flush(self, timeout_s: float = EXIT_S) -> bool:
        """Whether all that was recorded is off our hands, after at most so many seconds."""
        return self._buffer.flush(timeout_s)

    @_harmless
    def close(self, timeout_s: float = EXIT_S) -> None:
        """Deliver what can be delivered in the time, and end."""
        _live.discard(self)
        end_s = time.monotonic() + timeout_s
        self._buffer.flush(0.9 * timeout_s)  # the rest is for the thread to end
        self._buffer.close()
        self._sender.join(max(0.0, end_s - time.monotonic()))

    def _now_ns(self) -> int:
        return self._epoch_ns + time.perf_counter_ns()

    def _next_seq_id(self, step: int, optype: str) -> int:
        num_begun = self._num_begun.get(step)
        if num_begun is None:
            num_begun = self._num_begun[step] = defaultdict(int)
            forget_oldest(self._num_begun)
        seq_id = num_begun[optype]
        num_begun[optype] = seq_id + 1
        return seq_id


class TimedOp:
    """Context manager of one operation."""

    def __init__(
        self,
        recorder: Recorder,
        optype: str,
        step: int | None,
        microbatch: int,
        chunk: int,
        told: dict[str, Any],
    ) -> None:
        self._recorder = recorder
        self._optype = optype
        self._where = (step, microbatch, chunk)
        self._told = told
        self._begun: Begun | None = None

    def tell(self, **told: int) -> None:
        """What was not known when it began; takes what `Recorder.op` takes."""
        self._told = {**self._told, **told}

    def __enter__(self) -> TimedOp:
        step, microbatch, chunk = self._where
        self._begun = self._recorder.begin(
            self._optype, step=step, microbatch=microbatch, chunk=chunk
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recorder.end(self._begun, **self._told)


class TimedStep:
    """Context manager of one training step."""

    def __init__(self, recorder: Recorder, step: int) -> None:
        self._recorder = recorder
        self._step = step

    def __enter__(self) -> TimedStep:
        self._recorder._step = self._step
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:  # a step that was broken off is not done
            self._recorder.step_done(self._step)


def start(
    job: str,
    url: str,
    token: str,
    *,
    rank: int,
    dp_rank: int,
    stage: int,
    dp_size: int,
    pp_size: int,
    run_key: str,
    tp_size: int = 1,
    vpp_size: int = 1,
    dsp_size: int = 1,
    ep_size: int = 1,
    host: str | None = None,
    name: str | None = None,
    gpus: int | None = None,
    framework: str | None = None,
    labels: Mapping[str, str] | None = None,
    op_types: Sequence[Mapping[str, str]] | None = None,
    epoch: int | None = None,
    flush_interval_s: float = 1.0,
    max_ops: int = DEFAULT_MAX_OPS,
    backoff: Backoff | None = None,
) -> Recorder:
    """A recorder that registers the run (unless `epoch` is given) and sends in the background.

    Never raises: a server that is not up yet is waited for while operations are kept; one that
    refuses, or an address that is none, is logged once.

    `op_types` describes what the run records beside the built-in operation types, as `register`
    takes it. Operations of a type that nobody registered are refused one by one, and counted in
    `dropped`.
    """
    sizes = Sizes(dp_size, pp_size, tp_size, vpp_size, dsp_size, ep_size)
    buffer = Buffer(max_ops, flush_interval_s)
    sender = Sender(
        Transport(url, token),
        job,
        Worker(rank, dp_rank, stage, host or socket.gethostname()),
        buffer,
        request=registration(sizes, run_key, name, gpus, framework, labels, op_types),
        epoch=epoch,
        backoff=backoff,
    )
    sender.start()
    return Recorder(buffer, sender)


_live: weakref.WeakSet[Recorder] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    end_s = time.monotonic() + EXIT_S
    for recorder in list(_live):
        recorder.close(max(0.0, end_s - time.monotonic()))
