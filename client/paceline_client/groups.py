"""Collectives inside tensor-, context- and expert-parallel groups, in a share of the steps.

    tp = recorder.group("tp", "tp", ranks=[0, 1, 2, 3])
    with recorder.op("all-reduce", group=tp):
        ...

Every member records them, also ranks that record nothing else. They wait here, apart from the
operations: no step is complete by them, and none waits for them.
"""

from __future__ import annotations

import logging
import operator
import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from .told import LARGEST, told_of
from .topology import group_ranks

if TYPE_CHECKING:
    from .cuda import CudaTiming
    from .integrations.flight_recorder import FlightRecorder
    from .timed import StepState

EVERY = 10  # of the recorded steps, one in so many has them
AXES = ("dp", "tp", "cp", "ep", "pp", "")
MAX_GROUPS = 256  # of one recorder
MAX_MEMBERS = 1 << 16  # of all of them together
MAX_NAME_CHARS = 64
MAX_KINDS = 250
MAX_ROWS_OF_STEP = 10_000
MAX_COUNTED_STEPS = 64  # of the newest ones rows are counted
MAX_WAITING = 1 << 16  # rows in memory, some 200 bytes each
MAX_ROWS = 5_000  # a batch
LONGEST_NS = 86_400 * 10**9
LAST_SEQUENCE = 2**31 - 1

# Why a row was dropped.
FULL = "group buffer full"
TOO_MANY = "too many group rows in a step"
INVALID = "not a valid group row"
NO_GPU_TIME = "no time from the GPU"

# step, group, kind, sequence, start_ns (-1: not known), duration_ns, bytes (-1: not known)
Row = tuple[int, int, str, int, int, int, int]

log = logging.getLogger("paceline_client")


class Group(NamedTuple):
    """A group that was declared, to be handed to `Recorder.op`; `at` is its number here."""

    at: int
    name: str
    axis: str
    ranks: tuple[int, ...]


NO_GROUP = Group(-1, "", "", ())  # one that could not be declared: nothing of it is recorded


class GroupBatch(NamedTuple):
    """Rows that go into one batch by columns, and the groups that they are of."""

    groups: list[Group]
    kinds: list[str]
    columns: dict[str, array[int]]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.columns["step"])


class Waiting(NamedTuple):
    """A row between two CUDA events."""

    row: Row
    begin: Any
    end: Any
    timing: CudaTiming
    epoch_ns: int


class GroupBuffer:
    """Rows that have been recorded and not yet been sent: bounded, and what has no room counted."""

    def __init__(self, *, is_alone: bool = False, every: int = EVERY) -> None:
        self.is_alone = is_alone  # its rank records nothing else
        self.every = max(1, every)
        self.groups: list[Group] = []
        self.is_used = False  # whether there is anything that could be recorded
        self.beside: FlightRecorder | None = None  # what else knows of collectives
        self.max_rows = MAX_WAITING  # 0 once closed
        self.dropped: dict[str, int] = {}  # by reason, until the sender has taken the count
        self._rows: deque[Row | Waiting] = deque()
        self._num_of_step: dict[int, int] = {}
        self._kinds: set[str] = set()
        self._looked_s = 0.0
        self._is_stalled = False
        self._warned = False

    def declare(self, name: str, axis: str, ranks: Any, own_rank: int | None) -> Group:
        """The group of this name, axis and ranks, the same one each time; `NO_GROUP` if it cannot.

        `ranks` are global ranks, or what torch has for a group: a ProcessGroup, or a DeviceMesh of
        one dimension.
        """
        try:
            members = tuple(group_ranks(ranks))
            problem = self._problem(name, axis, members, own_rank)
        except Exception as error:
            members, problem = (), f"its ranks are not known: {error}"
        if problem:
            self._warn(f"group {name!r:.80} is not recorded: {problem}")
            return NO_GROUP
        for group in self.groups:
            if group[1:] == (name, axis, members):
                return group
        group = Group(len(self.groups), name, axis, members)
        self.groups.append(group)
        self.is_used = True
        return group

    def _problem(
        self, name: str, axis: str, ranks: Sequence[int], own_rank: int | None
    ) -> str | None:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
            return f"a name has 1 to {MAX_NAME_CHARS} characters"
        if not name.isprintable():
            return "its name has characters that cannot be printed"
        if axis not in AXES:
            return f"its axis is {axis!r:.20}: one of {', '.join(filter(None, AXES))} is wanted"
        if len(set(ranks)) < max(2, len(ranks)) or min(ranks) < 0 or max(ranks) >= 2**31:
            return "at least two different ranks are wanted, each from 0"
        if own_rank is not None and own_rank not in ranks:
            return f"rank {own_rank} is no member of it"
        if len(self.groups) >= MAX_GROUPS:
            return f"there are {MAX_GROUPS} groups already"
        if sum(len(group.ranks) for group in self.groups) + len(ranks) > MAX_MEMBERS:
            return f"all groups together have at most {MAX_MEMBERS} members"
        return None

    def has_room(self, step: int) -> bool:
        """Whether a row of the step can be kept; else it is counted."""
        number = self._num_of_step.get(step, 0)
        if number >= MAX_ROWS_OF_STEP or len(self._rows) >= self.max_rows:
            self.drop(TOO_MANY if number >= MAX_ROWS_OF_STEP else FULL)
            return False
        if number == 0 and len(self._num_of_step) >= MAX_COUNTED_STEPS:
            self._forget_steps()
        self._num_of_step[step] = number + 1
        return True

    def _forget_steps(self) -> None:
        try:
            while len(self._num_of_step) >= MAX_COUNTED_STEPS:
                self._num_of_step.pop(next(iter(self._num_of_step)), None)
        except (RuntimeError, StopIteration):
            return  # training and the sender's thread both count; the next new step tries again

    def add(self, row: Row | Waiting) -> None:
        """Keep a row."""
        self._rows.append(row)

    def drop(self, reason: str, number: int = 1) -> None:
        """So many rows are lost."""
        self.dropped[reason] = self.dropped.get(reason, 0) + number

    @property
    def has_rows(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._rows)

    @property
    def is_stalled(self) -> bool:
        """Whether what waits is still running on the GPU, as far as was looked."""
        return self._is_stalled and bool(self._rows)

    @property
    def may_look(self) -> bool:
        """Whether it is worth to look (again) what can be sent."""
        if not self._rows:
            return False
        return not self._is_stalled or time.monotonic() - self._looked_s >= 0.01

    def take(self) -> GroupBatch | None:
        """What can go into one batch, in the order of recording; None when that is nothing."""
        rows: list[Row] = []
        self._looked_s, self._is_stalled = time.monotonic(), False
        while self._rows and len(rows) < MAX_ROWS:
            item = self._rows[0]
            if isinstance(item, Waiting):
                try:
                    row = _resolved(item)
                except Exception:
                    row = None
                    self._rows.popleft()
                    self.drop(NO_GPU_TIME)
                    continue
                if row is None:
                    self._is_stalled = True
                    break
                item = row
            self._rows.popleft()
            good = self._good(item)
            if good is None:
                self.drop(INVALID)
            else:
                rows.append(good)
        return self._batch(rows) if rows else None

    @property
    def has_unread(self) -> bool:
        """Whether the flight recorder has to be read soon."""
        return self.beside is not None and self.beside.has_unread

    def look_beside(self) -> bool:
        """Whether PyTorch's flight recorder was due, and had rows; on the sender's thread."""
        if self.beside is None or not self.max_rows:
            return False
        before = len(self._rows)
        try:
            self.beside.look(self)
        except Exception as error:
            self._warn(f"PyTorch's flight recorder is not read: {error!r:.200}")
            self.beside = None
        return len(self._rows) > before

    def close(self) -> None:
        """Take nothing more."""
        self.max_rows = 0

    def abandon(self) -> int:
        """Take nothing more and forget what waits; how many rows that were."""
        self.close()
        number = len(self._rows)
        self._rows = deque()
        return number

    def _good(self, row: Row) -> Row | None:
        """The row in Python's own numbers; None if the format cannot hold it."""
        step, at, kind, sequence, start_ns, duration_ns, told_bytes = row
        try:
            sequence, start_ns = operator.index(sequence), operator.index(start_ns)
            duration_ns = operator.index(duration_ns)
        except TypeError:
            return None
        num_bytes = told_of({"bytes": told_bytes}).get("bytes", -1)
        is_good = (
            0 <= step <= LARGEST
            and 0 <= at < len(self.groups)
            and 0 <= sequence <= LAST_SEQUENCE
            and -1 <= start_ns < 3 * 2**61
            and 0 <= duration_ns <= LONGEST_NS
            and self._is_kind(kind)
        )
        return (step, at, kind, sequence, start_ns, duration_ns, num_bytes) if is_good else None

    def _is_kind(self, kind: Any) -> bool:
        if not isinstance(kind, str):
            return False
        if kind in self._kinds:
            return True
        is_name = 0 < len(kind) <= MAX_NAME_CHARS and kind.isprintable()
        if is_name and len(self._kinds) < MAX_KINDS:
            self._kinds.add(kind)
            return True
        return False

    def _batch(self, rows: Sequence[Row]) -> GroupBatch:
        groups: dict[int, int] = {}
        kinds: dict[str, int] = {}
        columns = {
            "step": array("q", [row[0] for row in rows]),
            "group": array("q", [groups.setdefault(row[1], len(groups)) for row in rows]),
            "kind": array("q", [kinds.setdefault(row[2], len(kinds)) for row in rows]),
            "sequence": array("q", [row[3] for row in rows]),
            "start_ns": array("q", [row[4] for row in rows]),
            "duration_ns": array("q", [row[5] for row in rows]),
            "bytes": array("q", [row[6] for row in rows]),
        }
        for name in ("start_ns", "bytes"):
            if max(columns[name]) < 0:
                del columns[name]
        return GroupBatch([self.groups[at] for at in groups], list(kinds), columns)

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("paceline: %s (further warnings are left out)", message)


def _resolved(waiting: Waiting) -> Row | None:
    span_ns = waiting.timing.span_ns(waiting.begin, waiting.end)
    if span_ns is None:
        return None
    step, at, kind, sequence, _, _, num_bytes = waiting.row
    return step, at, kind, sequence, waiting.epoch_ns + span_ns[0], span_ns[1], num_bytes


class TimedGroupOp:
    """Times one collective of a group by the host's clock, or by CUDA events where it has them."""

    __slots__ = (
        *("_begin", "_buffer", "_bytes", "_cuda", "_epoch_ns", "_group", "_kind", "_sequence"),
        *("_start_ns", "_step"),
    )

    def __init__(
        self,
        buffer: GroupBuffer,
        epoch_ns: int,
        kind: str,
        group: Group,
        state: StepState,
        told: Mapping[str, Any],
        cuda: CudaTiming | None,
    ) -> None:
        self._buffer = buffer
        self._epoch_ns = epoch_ns
        self._kind = kind
        self._group = group
        self._step = state.step
        self._bytes = told.get("bytes", -1)
        sequence = told.get("sequence")
        # Counted as it is called: all members make the same calls in the same order.
        self._sequence = next(state.counts[f"{group.at} {kind}"]) if sequence is None else sequence
        self._cuda = cuda
        self._begin: Any = None
        self._start_ns = 0

    def tell(self, **told: Any) -> None:
        """What was not known when it began: `bytes`, `sequence`."""
        self._bytes = told.get("bytes", self._bytes)
        self._sequence = told.get("sequence", self._sequence)

    def __enter__(self) -> TimedGroupOp:
        self._begin = None if self._cuda is None else self._cuda.mark()
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        duration_ns = perf_counter_ns() - self._start_ns
        buffer = self._buffer
        if not buffer.has_room(self._step):
            return
        start_ns = self._epoch_ns + self._start_ns
        row = (
            *(self._step, self._group.at, self._kind, self._sequence),
            *(start_ns, duration_ns, self._bytes),
        )
        cuda = self._cuda
        end = cuda.mark() if cuda is not None and self._begin is not None else None
        if cuda is None or end is None:
            buffer.add(row)
        else:
            buffer.add(Waiting(row, self._begin, end, cuda, self._epoch_ns))
