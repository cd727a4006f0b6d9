"""Give recorded operations to recorders, as the training workers would have."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import repeat
from types import TracebackType
from typing import Protocol, Self

import paceline_client

from app.cli.replay_clock import Clock, Timeline, due
from app.errors import InvalidRequest, Unavailable
from app.trace.ops import BUILT_IN, OpTypes
from app.trace.window import OPTIONAL, Trace

# The server may be busy or restarting; after this long without an end, it is said to be away.
_DELIVER_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.1


class WallClock:
    """The time of this machine."""

    def now_s(self) -> float:
        """Seconds since any beginning."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Returns later."""
        time.sleep(seconds)


class RecordsOps(Protocol):
    """What is needed of a recorder."""

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
        """Take one operation, and what is told of it beside."""

    def step_done(self, step: int) -> None:
        """Take it that the step is finished."""


def push(
    timeline: Timeline,
    recorders: Sequence[RecordsOps],
    *,
    begin_ns: int,
    speed: float,
    clock: Clock,
    progress: Callable[[int], None],
    op_types: OpTypes = BUILT_IN,
    began_s: float | None = None,
) -> None:
    """Give every operation to its worker's recorder when it is due.

    `begin_ns` is when the first step begins; `progress` is told how many more were given.
    `op_types` names the operations, `began_s` is the first step's beginning by `clock`, or now.
    """
    names = {code: spec.name for code, spec in op_types.by_code.items()}
    trace = timeline.trace
    duration_ns = timeline.end_ns - timeline.start_ns
    for rows in due(timeline, speed, clock, began_s):
        columns = (
            timeline.worker, timeline.closes_step, trace.optype, trace.step,
            timeline.start_ns + begin_ns, duration_ns, trace.seq_id, trace.mc, trace.mb_id,
        )  # fmt: skip
        told = _told(trace, rows)
        for worker, closes, code, step, *rest in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            recorders[worker].record(names[code], step, *rest, **next(told))
            if closes:
                recorders[worker].step_done(step)
        progress(rows.stop - rows.start)


def _told(trace: Trace, rows: slice) -> Iterator[dict[str, int]]:
    """What is told of each of the rows in a trace's optional columns."""
    columns = {name: getattr(trace, name) for name in OPTIONAL}
    there = {name: values[rows].tolist() for name, values in columns.items() if values is not None}
    if not there:
        yield from repeat({}, rows.stop - rows.start)
    for values in zip(*there.values(), strict=True):
        yield {name: value for name, value in zip(there, values, strict=True) if value >= 0}


def deliver(recorders: Sequence[paceline_client.Recorder], complaints: Sequence[str]) -> None:
    """Returns once the server has taken everything.

    Raises:
        InvalidRequest: it refused some of it.
        Unavailable: it did not take everything in time.
    """
    until_s = time.monotonic() + _DELIVER_WITHIN_S
    for recorder in recorders:
        while not recorder.flush(_LOOK_EVERY_S):
            if time.monotonic() > until_s:
                raise Unavailable(
                    f"the server did not take everything in {_DELIVER_WITHIN_S:.0f} s: "
                    f"{_first(complaints)}"
                )
    if lost := sum(recorder.dropped for recorder in recorders):
        raise InvalidRequest(f"{lost:,} operations were not taken: {_first(complaints)}")


class Complaints(logging.Handler, AbstractContextManager["Complaints"]):
    """What the client package logs while this is entered, kept in `messages`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self._log = logging.getLogger(paceline_client.__name__)
        self._propagated = self._log.propagate

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.messages.append(record.getMessage())

    def __enter__(self) -> Self:
        self._log.addHandler(self)
        self._log.propagate = False  # or it would be printed across the progress bar too
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._propagated


def _first(complaints: Sequence[str]) -> str:
    return complaints[0] if complaints else "the server gave no reason"
