"""The open window, closed windows that late operations may still complete, and their stored bytes.

Late collectives inside groups are taken into the newest windows, too. A closed window's operations
and collectives are stored column by column, compressed without loss.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from app.engine.memory import return_freed_memory
from app.ingest.assembly.op_table import (
    GROUP_TABLE_COLUMNS,
    GroupRowCounts,
    GroupSlice,
    GroupTable,
    OpTable,
    group_table_of_slices,
)
from app.ingest.assembly.rank_tracker import RankTracker
from app.ingest.assembly.run_table import BatchSlice, concatenate_tables
from app.ingest.assembly.steps import OpenStep, SettledStep, settle_step
from app.ingest.wire.body import LAST_STEP
from app.ingest.wire.collectives import members_of, ranks_of
from app.trace.collectives import RankGroup, RankPlace
from app.trace.job import Job
from app.trace.window import (
    TABLE_DTYPES,
    PartialSteps,
    SkippedStep,
    StepKind,
    Window,
    WindowState,
)

_LEVEL = 1  # twice the size of the best one, for a tenth of the time


def pack_column(values: NDArray[Any]) -> dict[str, Any]:
    """Differences to the least value, in the narrowest integers that hold them, compressed."""
    least = int(values.min()) if values.size else 0
    most = int(values.max()) if values.size else 0
    dtype = np.min_scalar_type(most - least).newbyteorder("<")
    # Modulo 2**64, where the difference of any two values has room.
    offsets = values.view(f"u{values.itemsize}") - np.array(least, values.dtype).view(
        f"u{values.itemsize}"
    )
    data = zstandard.compress(offsets.astype(dtype, copy=False).data, _LEVEL)
    return {"least": least, "dtype": dtype.str, "bytes": data}


def unpack_column(column: dict[str, Any]) -> NDArray[np.int64]:
    """The values that `pack_column` was given, as int64."""
    return unpack_offsets(column, zstandard.decompress(column["bytes"]))


def unpack_offsets(column: dict[str, Any], offsets_bytes: bytes) -> NDArray[np.int64]:
    """The same of a column that was compressed in another way, or not at all."""
    offsets = np.frombuffer(offsets_bytes, dtype=column["dtype"]).astype(np.uint64)
    offsets += np.int64(column["least"]).view(np.uint64)
    return offsets.view(np.int64)


_PLACE_COLUMNS = ("rank", "dp_rank", "stage", "local_rank", "host")


def groups_to_message(table: GroupTable) -> dict[str, Any]:
    """The table as a map that msgpack can hold."""
    hosts = sorted({each.host for each in table.places.values() if each.host is not None})
    host_at = {host: at for at, host in enumerate(hosts)}
    places = [table.places[rank] for rank in sorted(table.places)]
    columns = {
        "rank": [each.rank for each in places],
        "dp_rank": [_or_none(each.dp_rank) for each in places],
        "stage": [_or_none(each.stage) for each in places],
        "local_rank": [_or_none(each.local_rank) for each in places],
        "host": [-1 if each.host is None else host_at[each.host] for each in places],
    }
    return {
        "groups": [
            {"name": each.name, "axis": each.axis, **members_of(each.ranks)}
            for each in table.groups
        ],
        "kinds": list(table.kinds),
        "hosts": hosts,
        "columns": {name: pack_column(values) for name, values in table.columns().items()},
        "places": {
            name: pack_column(np.array(values, np.int64)) for name, values in columns.items()
        },
    }


def groups_of_message(message: dict[str, Any]) -> GroupTable:
    """The table in a map that `groups_to_message` made."""
    hosts = message["hosts"]
    columns = {
        name: unpack_column(message["columns"][name]).astype(np.int64)
        for name in GROUP_TABLE_COLUMNS
    }
    places = [unpack_column(message["places"][name]).tolist() for name in _PLACE_COLUMNS]
    return GroupTable(
        groups=tuple(_group(each) for each in message["groups"]),
        kinds=tuple(message["kinds"]),
        places={
            rank: RankPlace(
                rank,
                None if dp_rank < 0 else dp_rank,
                None if stage < 0 else stage,
                None if host < 0 else hosts[host],
                None if local_rank < 0 else local_rank,
            )
            for rank, dp_rank, stage, local_rank, host in zip(*places, strict=True)
        },
        **columns,
    )


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _group(message: dict[str, Any]) -> RankGroup:
    ranks = ranks_of(message.get("ranks", ()), message.get("runs", ()))
    return RankGroup(message["name"], message["axis"], tuple(ranks))


# Operation types are stored by code. That lasts: built-in rows are only ever appended, below
# the first code of a job's own types, which have the order of their run's registration.
# Format 1, of the first release, was compressed otherwise and knew no optional columns.
# What else is known of the window stands beside the columns, where older versions do not look.
WINDOW_FORMAT = 2
_ZLIB = b"\x78"


class StoredWindow(NamedTuple):
    """A window's operations, and the collectives inside groups, None where there are none."""

    ops: OpTable
    groups: GroupTable | None


def pack_window(table: OpTable, groups: GroupTable | None = None) -> bytes:
    """The table as bytes, each column compressed, and the collectives inside groups with it."""
    message: dict[str, Any] = {
        "format": WINDOW_FORMAT,
        "columns": {
            name: pack_column(values)
            for name in TABLE_DTYPES  # one after the other: a `RunTable` makes some of them anew
            if (values := getattr(table, name)) is not None
        },
    }
    if groups is not None and groups.num_rows:
        message["collectives"] = groups_to_message(groups)
    return msgspec.msgpack.encode(message)


def unpack_window(blob: bytes) -> StoredWindow:
    """All that is in bytes that `pack_window` made.

    Raises:
        ValueError: a newer version made them.
    """
    message = _message(blob)
    groups = message.get("collectives")
    return StoredWindow(_operations(message), None if groups is None else groups_of_message(groups))


def _message(blob: bytes) -> dict[str, Any]:
    while blob[:1] == _ZLIB:  # format 1 was compressed as a whole, and twice
        blob = zlib.decompress(blob)
    message: dict[str, Any] = msgspec.msgpack.decode(blob)
    if message["format"] not in (1, WINDOW_FORMAT):
        raise ValueError(f"stored operations of format {message['format']} are not known here")
    return message


def _operations(message: dict[str, Any]) -> OpTable:
    columns = {}
    for name, column in message["columns"].items():
        is_packed = message["format"] == WINDOW_FORMAT
        offsets = zstandard.decompress(column["bytes"]) if is_packed else column["bytes"]
        columns[name] = unpack_offsets(column, offsets).astype(TABLE_DTYPES[name])
    return OpTable(**columns)


# Evaluations and the like close no window, unless there are this many in a row.
MAX_LEFT_OUT = 256
# A window with more operations would not fit into a consumer's memory: it closes earlier.
MAX_WINDOW_OPS = 16_000_000
LARGE_OPS = 1_000_000


class OpenWindow:
    """Successive settled steps; full with N complete or N incomplete ones.

    `revision` is the newest one handed out; `has_news` says that there are changes since.
    """

    def __init__(self, job: Job, epoch: int, window_steps: int, *, revision: int = 0) -> None:
        self._job = job
        self._epoch = epoch
        self._window_steps = window_steps
        self._table: OpTable | None = None
        self.settled: list[SettledStep] = []
        self.revision = revision
        self.has_news = False

    def add(self, step: SettledStep) -> None:
        """Append the next step."""
        self.settled.append(step)
        self._table, self.has_news = None, True

    def replace(self, step: SettledStep) -> None:
        """Replace the step of the same number."""
        at = next(at for at, each in enumerate(self.settled) if each.step == step.step)
        self.settled[at] = step
        self._table, self.has_news = None, True

    def skipped(self, number: int) -> SettledStep | None:
        """The step of this number, if it is in the window and was skipped."""
        for each in self.settled:
            if each.step == number:
                return each if each.skipped else None
        return None

    @property
    def state(self) -> WindowState:
        """State by the steps so far."""
        num_lacking = sum(_is_incomplete(step) for step in self.settled)
        num_left_out = sum(_is_no_training_step(step) for step in self.settled)
        num_complete = len(self.settled) - num_lacking - num_left_out
        is_over = num_left_out >= MAX_LEFT_OUT
        if num_complete >= self._window_steps or (num_complete and (is_over or self._is_large())):
            return "complete"
        return "incomplete" if is_over or num_lacking >= self._window_steps else "open"

    @property
    def ended_state(self) -> WindowState:
        """State if no further step follows."""
        is_lacking = any(map(_is_incomplete, self.settled))
        is_without = all(map(_is_no_training_step, self.settled))
        return "incomplete" if is_lacking or is_without else "complete"

    @property
    def table(self) -> OpTable:
        """All operations, those of skipped steps included."""
        if self._table is None:
            self._table = concatenate_tables([step.table for step in self.settled])
            # The steps' own copies would take as much again.
            self.settled = [
                replace(step, table=self._table.of_step(step.step)) for step in self.settled
            ]
            if self._table.num_ops > LARGE_OPS:  # its batches lay in small blocks all over
                return_freed_memory()
        return self._table

    @property
    def steps_with_groups(self) -> list[int]:
        """Steps whose collectives inside groups are kept."""
        return [step.step for step in self.settled if keeps_groups(step.skipped)]

    def revised(
        self, state: WindowState, tracker: RankTracker, groups: GroupTable | None = None
    ) -> Window:
        """The window for analysis, as a new revision; `tracker` is the run's."""
        steps = tuple(step.step for step in self.settled if step.skipped is None)
        self.revision = max(len(self.settled), self.revision + 1)
        self.has_news = False
        skipped = tuple(step.skipped for step in self.settled if step.skipped)
        origin_ns = self.table.origins_ns(steps)
        lacking = tuple(each for each in skipped if each.kind is None and each.missing)
        return Window(
            job=self._job,
            epoch=self._epoch,
            first_step=self.settled[0].step,
            steps=steps,
            trace=self.table.trace(steps),
            skipped=skipped,
            state=state,
            revision=self.revision,
            hosts=tracker.hosts(),
            places=tracker.workers_by_rank({rank for step in skipped for rank in step.missing}),
            origin_ns=origin_ns,
            collectives=None if groups is None else groups.collectives(steps, origin_ns),
            partial=partial_steps(self.table, groups, steps, lacking) if lacking else None,
        )

    def _is_large(self) -> bool:
        """Whether one more step like the last would exceed the limit."""
        sizes = [step.table.num_ops for step in self.settled]
        return sum(sizes) + sizes[-1] > MAX_WINDOW_OPS


def partial_steps(
    table: OpTable,
    groups: GroupTable | None,
    complete: Sequence[int],
    lacking: tuple[SkippedStep, ...],
) -> PartialSteps:
    """What was recorded of the steps that lack operations, ascending."""
    numbers = [each.step for each in lacking]
    every = sorted([*complete, *numbers])
    collectives = None if groups is None else groups.collectives(every, table.origins_ns(every))
    return PartialSteps(lacking, table.trace(numbers), table.origins_ns(numbers), collectives)


def keeps_groups(skipped: SkippedStep | None) -> bool:
    """Whether the step's collectives inside groups are kept; those of evaluations are not."""
    return skipped is None or skipped.kind is None


def _is_no_training_step(step: SettledStep) -> bool:
    """Whether it is no training step, of which nothing is missing."""
    return step.skipped is not None and step.skipped.kind is not None


def _is_incomplete(step: SettledStep) -> bool:
    return step.skipped is not None and step.skipped.kind is None


MAX_DECLARED = 1_000_000  # of all that is remembered: beyond, the oldest windows are final
# Members of groups send beside the workers whose last word closes a window. Each revision analyses
# the window anew: what trickles in for longer is too late.
MAX_GROUP_WINDOWS = 8
MAX_GROUP_REVISIONS = 4

RecallOps = Callable[[int], bytes]  # what `trace_codec` packed of the window with this first step
# Step, and what `OpenStep.take` wants: worker, rank, operations, number of declared ones, kind.
LateReport = tuple[int, int, int, BatchSlice | None, int | None, StepKind | None]


class ClosedWindow(msgspec.Struct):
    """What is known of a closed window beside its stored operations.

    `declared` holds for every skipped step what its `OpenStep.declared()` said; it can be revised
    `group_revisions` times for late collectives inside groups.
    """

    state: WindowState
    revision: int
    steps: list[tuple[int, SkippedStep | None]]
    declared: dict[int, dict[int, tuple[int, int]]]
    group_revisions: int = 0

    @property
    def first_step(self) -> int:
        """The first step in it, complete or skipped."""
        return self.steps[0][0]

    def can_use(self, step: int, rank: int) -> bool:
        """Whether the rank's data of this step is missing, so that a late batch can complete it."""
        if step not in self.declared:
            return False
        if rank not in self.declared[step]:
            return True
        skipped = dict(self.steps)[step]
        return skipped is not None and skipped.is_missing(rank)

    def takes_groups(self, step: int) -> bool:
        """Whether late collectives inside groups of this step can be taken in."""
        if not self.group_revisions:
            return False
        return any(number == step and keeps_groups(skipped) for number, skipped in self.steps)

    @property
    def size(self) -> int:
        """How much there is to remember."""
        return sum(map(len, self.declared.values()))


class RevisedWindow(NamedTuple):
    """A closed window with its late operations."""

    window: OpenWindow
    state: WindowState
    groups: GroupTable | None


class ClosedWindows:
    """The closed windows of one run that can still be revised, the oldest first."""

    def __init__(self, windows: Iterable[ClosedWindow], now_s: float) -> None:
        self._windows = {window.first_step: (window, now_s) for window in windows}
        self._late: dict[int, list[LateReport]] = {}
        self._late_groups: dict[int, list[GroupSlice]] = {}
        self._late_rows = GroupRowCounts()  # of windows that can still be revised
        self._final_through = -1  # what comes late of steps up to this one is not counted any more

    @property
    def kept(self) -> list[ClosedWindow]:
        """All of them, for storing."""
        return [window for window, _ in self._windows.values()]

    def add(
        self,
        steps: list[SettledStep],
        state: WindowState,
        revision: int,
        now_s: float,
        *,
        group_revisions: int = 0,
    ) -> None:
        """A window has been closed; without skipped steps and groups it is final."""
        declared = {each.step: each.open.declared() for each in steps if each.open is not None}
        if declared or group_revisions:
            named = [(each.step, each.skipped) for each in steps]
            window = ClosedWindow(state, revision, named, declared, group_revisions)
            self._windows[window.first_step] = (window, now_s)
            self._windows = dict(sorted(self._windows.items()))
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Remember no more than there is room for, but the newest and what is to be revised."""
        with_groups = [first for first, (each, _) in self._windows.items() if each.group_revisions]
        for first in with_groups[:-MAX_GROUP_WINDOWS]:
            window = self._windows[first][0]
            window.group_revisions = 0
            if not window.declared and first not in self._late_groups:
                del self._windows[first]
        size = sum(window.size for window, _ in self._windows.values())
        for first, (window, _) in list(self._windows.items())[:-1]:
            is_due = first in self._late or first in self._late_groups
            if size > MAX_DECLARED and window.size and not is_due:
                del self._windows[first]
                size -= window.size

    def forget(self, before_s: float) -> None:
        """Windows closed before this moment become final, unless late data has just come."""
        old = [first for first, (_, at_s) in self._windows.items() if at_s < before_s]
        for first in old:
            if first not in self._late and first not in self._late_groups:
                del self._windows[first]
        with_groups = [first for first, (each, _) in self._windows.items() if each.group_revisions]
        final_through = min(with_groups, default=LAST_STEP + 1) - 1
        if final_through != self._final_through:
            self._final_through = final_through
            self._late_rows.remove_through(final_through)

    def take_group(self, number: int, part: GroupSlice) -> Literal["accepted", "late", "refused"]:
        """Whether collectives inside groups of this step can be taken in, or are too many.

        `revise` will take them in.
        """
        for first, (window, _) in self._windows.items():
            if window.takes_groups(number):
                if not self._late_rows.add(number, part):
                    return "refused"
                self._late_groups.setdefault(first, []).append(part)
                return "accepted"
        return "late"

    def take(
        self,
        number: int,
        worker: int,
        rank: int,
        part: BatchSlice | None,
        num_declared: int | None,
        kind: StepKind | None = None,
    ) -> bool:
        """Whether what a batch says of this step can still be used; if so, `revise` will."""
        for first, (window, _) in self._windows.items():
            if window.can_use(number, rank):
                said = self._late.setdefault(first, [])
                said.append((number, worker, rank, part, num_declared, kind))
                return True
        return False

    def revise(
        self, job: Job, epoch: int, tracker: RankTracker, recall: RecallOps
    ) -> list[RevisedWindow]:
        """The windows that late data has changed, each closed again."""
        revised = [
            self._revised(first, job, epoch, tracker, recall)
            for first in sorted(self._late.keys() | self._late_groups.keys())
        ]
        self._late, self._late_groups = {}, {}
        return [each for each in revised if each is not None]

    def _revised(
        self, first: int, job: Job, epoch: int, tracker: RankTracker, recall: RecallOps
    ) -> RevisedWindow | None:
        late, late_groups = self._late.get(first, []), self._late_groups.get(first, [])
        window, at_s = self._windows[first]
        stored = unpack_window(recall(first))
        groups = group_table_of_slices(late_groups, stored.groups) if late_groups else stored.groups
        # Looking costs as much where all of it was there: that counts as a revision, too.
        left = max(0, window.group_revisions - bool(late_groups))
        if not late and _num_rows(groups) == _num_rows(stored.groups):
            window.group_revisions = left
            if not left and not window.declared:
                del self._windows[first]
            return None
        del self._windows[first]
        again = OpenWindow(job, epoch, len(window.steps), revision=window.revision)
        for number, skipped in window.steps:
            table = stored.ops.of_step(number)
            if skipped is None or skipped.kind is not None:
                again.add(SettledStep(number, table, skipped))
                continue
            step = OpenStep.restored(
                table, number, window.declared[number], job.parallelism.pp_size
            )
            for each, worker, rank, part, num_declared, kind in late:
                if each == number:
                    step.add_report(worker, rank, part, num_declared, kind)
            again.add(settle_step(step, job, tracker, "in time"))
        state = _state(window.state, again)
        self.add(again.settled, state, window.revision + 1, at_s, group_revisions=left)
        return RevisedWindow(again, state, groups)


def _num_rows(groups: GroupTable | None) -> int:
    return 0 if groups is None else groups.num_rows


def _state(before: WindowState, window: OpenWindow) -> WindowState:
    """An incomplete window is complete once nothing is missing in it any more."""
    return window.ended_state if before == "incomplete" else before
