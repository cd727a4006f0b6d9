"""Collectives inside tensor-, context- and expert-parallel groups, in a sample of the steps.

    tp = recorder.group("tp", "tp", ranks=[0, 1, 2, 3])
    with recorder.op("all-reduce", group=tp):
        ...

Every member records them, including ranks that record no operations. They are buffered apart from
the operations: whether a step is complete does not depend on them.
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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..guard import guarded
from ..topology import group_ranks
from .op_attributes import MAX_ATTRIBUTE, valid_attributes
from .wire import NO_GROUP, Group, GroupBatch

if TYPE_CHECKING:
    from .cuda import CudaTiming
    from .timing import StepState

GROUP_STEP_EVERY = 10  # one recorded step in this many has group collectives
AXES = ("dp", "tp", "cp", "ep", "pp", "")
MAX_GROUPS = 256  # per recorder
MAX_MEMBERS = 1 << 16  # of all groups together
MAX_NAME_CHARS = 64
MAX_KINDS = 250
MAX_ROWS_OF_STEP = 10_000
MAX_COUNTED_STEPS = 64  # rows are counted for the newest steps only
MAX_PENDING = 1 << 16  # rows in memory, some 200 bytes each
MAX_ROWS = 5_000  # per batch
MAX_DURATION_NS = 86_400 * 10**9
MAX_SEQUENCE = 2**31 - 1

# Why a row was dropped.
FULL = "group buffer full"
STEP_FULL = "too many group rows in a step"
INVALID = "not a valid group row"
NO_GPU_TIME = "no time from the GPU"

# step, group, kind, sequence, start_ns (-1: unknown), duration_ns, bytes (-1: unknown)
Row = tuple[int, int, str, int, int, int, int]

log = logging.getLogger("paceline_client")


class CollectiveReader(Protocol):
    """A second source of collectives: PyTorch's flight recorder."""

    @property
    def has_unread(self) -> bool:
        """Whether a step has ended whose collectives have not been read."""

    def step_ended(self, step: int, begun_ns: int, ended_ns: int) -> None:
        """Training has left a step in which groups are recorded."""

    def poll(self, groups: GroupBuffer) -> None:
        """Add the collectives of ended steps, if a read is due."""


class PendingGroupOp(NamedTuple):
    """A row whose times come from two CUDA events."""

    row: Row
    begin: Any
    end: Any
    timing: CudaTiming
    epoch_ns: int


class GroupBuffer:
    """Bounded buffer of unsent group rows; rows that do not fit are counted by reason."""

    def __init__(self, *, is_alone: bool = False, every: int = GROUP_STEP_EVERY) -> None:
        self.is_alone = is_alone  # this rank records no operations
        self.every = max(1, every)
        self.groups: list[Group] = []
        self.is_used = False  # whether any group was declared or a reader attached
        self.reader: CollectiveReader | None = None
        self.max_rows = MAX_PENDING  # 0 once closed
        self.dropped: dict[str, int] = {}  # by reason, until the sender takes the counts
        self._rows: deque[Row | PendingGroupOp] = deque()
        self._num_of_step: dict[int, int] = {}
        self._kinds: set[str] = set()
        self._polled_s = 0.0
        self._is_stalled = False
        self._warned = False

    def declare(self, name: str, axis: str, ranks: Any, own_rank: int | None) -> Group:
        """The group of this name, axis and ranks, created on first use; `NO_GROUP` if invalid.

        `ranks` are global ranks, a ProcessGroup, or a DeviceMesh of one dimension.
        """
        try:
            members = tuple(group_ranks(ranks))
            problem = self._problem(name, axis, members, own_rank)
        except Exception as error:
            members, problem = (), f"its ranks are unknown: {error}"
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
            return f"its name must have 1 to {MAX_NAME_CHARS} characters"
        if not name.isprintable():
            return "its name has unprintable characters"
        if axis not in AXES:
            return f"its axis is {axis!r:.20}, not one of {', '.join(filter(None, AXES))}"
        if len(set(ranks)) < max(2, len(ranks)) or min(ranks) < 0 or max(ranks) >= 2**31:
            return "it needs at least two distinct ranks, each 0 or more"
        if own_rank is not None and own_rank not in ranks:
            return f"this rank, {own_rank}, is not a member"
        if len(self.groups) >= MAX_GROUPS:
            return f"there are already {MAX_GROUPS} groups"
        if sum(len(group.ranks) for group in self.groups) + len(ranks) > MAX_MEMBERS:
            return f"all groups together may have at most {MAX_MEMBERS} members"
        return None

    def has_room(self, step: int) -> bool:
        """Whether a row of the step fits; otherwise it is counted as dropped."""
        number = self._num_of_step.get(step, 0)
        if number >= MAX_ROWS_OF_STEP or len(self._rows) >= self.max_rows:
            self.drop(STEP_FULL if number >= MAX_ROWS_OF_STEP else FULL)
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
            return  # training and the sender's thread race here; the next new step tries again

    def add(self, row: Row | PendingGroupOp) -> None:
        """Keep a row."""
        self._rows.append(row)

    def drop(self, reason: str, number: int = 1) -> None:
        """Count lost rows."""
        self.dropped[reason] = self.dropped.get(reason, 0) + number

    @property
    def has_rows(self) -> bool:
        """Whether rows wait to be sent."""
        return bool(self._rows)

    @property
    def is_stalled(self) -> bool:
        """Whether the oldest row was still running on the GPU at the last `take`."""
        return self._is_stalled and bool(self._rows)

    @property
    def may_poll(self) -> bool:
        """Whether a `take` may find rows; at most every 10 ms while the GPU is busy."""
        if not self._rows:
            return False
        return not self._is_stalled or time.monotonic() - self._polled_s >= 0.01

    def take(self) -> GroupBatch | None:
        """Rows for one batch, in recording order; None if there are none."""
        rows: list[Row] = []
        self._polled_s, self._is_stalled = time.monotonic(), False
        while self._rows and len(rows) < MAX_ROWS:
            item = self._rows[0]
            if isinstance(item, PendingGroupOp):
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
        return self.reader is not None and self.reader.has_unread

    def poll_reader(self) -> bool:
        """Read the flight recorder if due; whether it had rows. Runs on the sender's thread."""
        if self.reader is None or not self.max_rows:
            return False
        before = len(self._rows)
        try:
            self.reader.poll(self)
        except Exception as error:
            self._warn(f"PyTorch's flight recorder is not read: {error!r:.200}")
            self.reader = None
        return len(self._rows) > before

    def close(self) -> None:
        """Accept no more rows."""
        self.max_rows = 0

    def abandon(self) -> int:
        """Accept no more rows and drop the unsent ones; returns their number."""
        self.close()
        number = len(self._rows)
        self._rows = deque()
        return number

    def _good(self, row: Row) -> Row | None:
        """The row in Python's own numbers; None if the format cannot hold it."""
        step, at, kind, sequence, start_ns, duration_ns, given_bytes = row
        try:
            sequence, start_ns = operator.index(sequence), operator.index(start_ns)
            duration_ns = operator.index(duration_ns)
        except TypeError:
            return None
        num_bytes = valid_attributes({"bytes": given_bytes}).get("bytes", -1)
        is_good = (
            0 <= step <= MAX_ATTRIBUTE
            and 0 <= at < len(self.groups)
            and 0 <= sequence <= MAX_SEQUENCE
            and -1 <= start_ns < 3 * 2**61
            and 0 <= duration_ns <= MAX_DURATION_NS
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


def _resolved(waiting: PendingGroupOp) -> Row | None:
    span_ns = waiting.timing.span_ns(waiting.begin, waiting.end)
    if span_ns is None:
        return None
    step, at, kind, sequence, _, _, num_bytes = waiting.row
    return step, at, kind, sequence, waiting.epoch_ns + span_ns[0], span_ns[1], num_bytes


class TimedGroupOp:
    """Times one collective of a group: by CUDA events if it has them, else by the host's clock."""

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
        attributes: Mapping[str, Any],
        cuda: CudaTiming | None,
    ) -> None:
        self._buffer = buffer
        self._epoch_ns = epoch_ns
        self._kind = kind
        self._group = group
        self._step = state.step
        self._bytes = attributes.get("bytes", -1)
        sequence = attributes.get("sequence")
        # All members make the same calls in the same order, so counts agree.
        self._sequence = next(state.counts[f"{group.at} {kind}"]) if sequence is None else sequence
        self._cuda = cuda
        self._begin: Any = None
        self._start_ns = 0

    def tell(self, **attributes: Any) -> None:
        """Set what was unknown at the start: `bytes`, `sequence`."""
        self._bytes = attributes.get("bytes", self._bytes)
        self._sequence = attributes.get("sequence", self._sequence)

    def __enter__(self) -> TimedGroupOp:
        self._mark()
        return self

    @guarded()
    def _mark(self) -> None:
        self._begin = None if self._cuda is None else self._cuda.mark()
        self._start_ns = perf_counter_ns()

    @guarded()
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
            buffer.add(PendingGroupOp(row, self._begin, end, cuda, self._epoch_ns))
