"""The operations of one Kineto file, their steps, and counts of skipped ones.

The profiler's marks say in which step an operation is, on the host or on its stream of the GPU.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.ops import NUM_CODES, OP_CODES
from app.trace.readers.disk_rows import Rows
from app.trace.readers.importing import MissingData
from app.trace.readers.kineto.event_names import KinetoNames
from app.trace.readers.kineto.process_groups import ParallelPosition
from app.trace.readers.kineto.trace_file import COMM, GPU, HOST, KinetoFile
from app.trace.readers.spooled_import import NUMBERED_TYPES
from app.trace.window import Ints

StepMarks = Sequence[tuple[int, int, int]]  # step, start, end
OUTSIDE_STEPS = -1


class ProfilerSteps:
    """Steps of one file on one clock (host, or a GPU stream).

    Raises:
        InvalidTrace: a step is there twice.
    """

    def __init__(self, where: str, windows: StepMarks, *, has_streams: bool = False) -> None:
        found: dict[int, tuple[int, int]] = {}
        for step, start, end in windows:
            if step in found and not has_streams:
                raise InvalidTrace(f"{where}: ProfilerStep#{step} is there twice: export one cycle")
            # Each GPU stream has its own mark: a step begins at the earliest.
            before = found.get(step, (start, end))
            found[step] = min(before[0], start), max(before[1], end)
        ordered = sorted((start, step, end) for step, (start, end) in found.items())
        self.steps = np.array([step for _, step, _ in ordered], np.int64)
        self._starts = np.array([start for start, _, _ in ordered], np.int64)
        self._end = ordered[-1][2] if ordered else 0

    def steps_of(self, start_ns: Ints) -> Ints:
        """[rows], the last step that began before each row, `OUTSIDE_STEPS` for none.

        What begins between two steps belongs to the first: a GPU finishes it later than its host.
        """
        if not self.steps.size:
            return np.full(start_ns.size, OUTSIDE_STEPS, np.int64)
        at = np.searchsorted(self._starts, start_ns, "right") - 1
        is_outside = (at < 0) | (start_ns > self._end)
        return np.where(is_outside, OUTSIDE_STEPS, self.steps[at])


Columns = dict[str, Ints]
# They are of a model chunk, by whatever name or group they are known.
_TYPES_WITH_CHUNK = [
    *NUMBERED_TYPES,
    OP_CODES["params-all-gather"],
    OP_CODES["grads-reduce-scatter"],
]
# In place of a type's stream on the GPU.
_NO_STREAM, _BY_HOST = -2, -3


@dataclass(slots=True)
class KinetoOmissions:
    """Counts of operations, over all files, that are skipped or inexact."""

    num_ops: int = 0
    num_outside: int = 0
    num_on_host: int = 0
    num_gpu_unused: int = 0
    num_by_host_steps: int = 0
    num_other_streams: int = 0
    num_without_group: int = 0

    @property
    def is_host_alone(self) -> bool:
        """Whether all times are host-side."""
        return self.num_on_host == self.num_ops

    def missing(self) -> list[MissingData]:
        """The counts in words."""
        said = (
            (
                self.num_on_host,
                f"GPU times: {self.num_on_host:,} of {self.num_ops:,} operations are timed by the "
                "host alone",
                "a host's time has waits for receives in it, and on a GPU it is that of launching: "
                "record with CUDA activities, or trust the order more than the durations",
            ),
            (
                self.num_gpu_unused,
                f"GPU spans: {self.num_gpu_unused:,} computations have one and others of their "
                "rank have none",
                "the host's times are taken for all computations of such a rank, since the two "
                "clocks' times have no common order: autograd launches the backward pass from a "
                "thread of its own, where no annotation is known",
            ),
            (
                self.num_outside,
                f"steps: {self.num_outside:,} operations are in no ProfilerStep",
                "they are left out: the first and last step of a profile may be incomplete",
            ),
            (
                self.num_by_host_steps,
                f"steps on the GPU: {self.num_by_host_steps:,} operations are put into steps by "
                "the host's marks",
                "a GPU runs behind its host: operations at a step's end may be in the next one",
            ),
            (
                self.num_other_streams,
                f"streams: {self.num_other_streams:,} annotations are on another stream",
                "the stream with most of an operation's time is taken, the others are left out",
            ),
            (
                self.num_without_group,
                f"groups: {self.num_without_group:,} NCCL kernels do not say of which group they "
                "are",
                "they are left out: communication looks like waiting; record with a newer PyTorch",
            ),
        )
        return [MissingData(what, cost) for count, what, cost in said if count]


class OpsOfFile:
    """A file's operations with their steps.

    Raises:
        InvalidTrace: the file has operations and no steps.
    """

    def __init__(
        self, file: KinetoFile, place: ParallelPosition, names: KinetoNames, losses: KinetoOmissions
    ) -> None:
        self._file = file
        self._losses = losses
        meant = names.of_file(file.path.name, file.names, place)
        self._code = np.array([each.codes[0] if each.codes else -1 for each in meant], np.int64)
        self._numbers = {
            "mb_id": np.array([each.mb_id for each in meant], np.int64),
            "mc": np.array([each.chunk for each in meant], np.int64),
            "step": np.array([each.step for each in meant], np.int64),
        }
        if place.sizes.get("vpp_size", 1) == 1:
            is_plain = np.isin(self._code, _TYPES_WITH_CHUNK) & (self._numbers["mc"] < 0)
            self._numbers["mc"][is_plain] = 0
        self._host_steps = ProfilerSteps(file.path.name, file.steps[HOST])
        self._gpu_steps = ProfilerSteps(file.path.name, file.steps[GPU], has_streams=True)
        self._stream_steps = {
            lane: ProfilerSteps(file.path.name, windows, has_streams=True)
            for lane, windows in file.steps_of_stream.items()
            if lane >= 0
        }
        self._stream = self._streams(names, place)
        losses.num_without_group += file.num_without_group
        self.steps = np.union1d(self._host_steps.steps, self._gpu_steps.steps).tolist()

    def columns(self) -> Iterator[Columns]:
        """Columns in blocks of rows; starts are on the file's own clock."""
        for rows in self._file.rows.blocks():
            chosen = rows[self._is_op(rows)]
            if not chosen.size:
                continue
            step = self._steps(chosen)
            is_inside = step != OUTSIDE_STEPS
            self._losses.num_outside += int((~is_inside).sum())
            self._count(chosen[is_inside])
            yield self._as_columns(chosen[is_inside], step[is_inside])

    def _as_columns(self, rows: Rows, step: Ints) -> Columns:
        name = rows["name"]
        return {
            "step": step,
            "optype": self._code[name],
            "start_ns": rows["start_ns"].astype(np.int64),
            "duration_ns": rows["duration_ns"].astype(np.int64),
            "mc": self._numbers["mc"][name],
            "mb_id": self._numbers["mb_id"][name],
        }

    def _streams(self, names: KinetoNames, place: ParallelPosition) -> dict[int, int]:
        """For each op type that the GPU annotates, the stream with most of its time."""
        total: Counter[tuple[int, int]] = Counter()
        on_host: set[int] = set()
        for rows in self._file.rows.blocks():
            code = self._code[rows["name"]]
            on_gpu = rows[(rows["kind"] == GPU) & (code >= 0)]
            for key, length in _summed(self._code[on_gpu["name"]], on_gpu):
                total[key] += length
            on_host.update(np.unique(code[rows["kind"] == HOST]).tolist())
            # A host annotation counts once, though the GPU may repeat it.
            self._count_names(rows[rows["kind"] != GPU], names, place)
        found: dict[int, int] = {}
        for (code_, lane), _ in sorted(total.items(), key=lambda each: each[1]):
            found[code_] = lane
        computing = on_host.intersection(NUMBERED_TYPES)
        if not computing <= found.keys():
            found |= dict.fromkeys(computing & found.keys(), _BY_HOST)
        return found

    def _count_names(self, rows: Rows, names: KinetoNames, place: ParallelPosition) -> None:
        code = self._code[rows["name"]]
        for name, times in _counted(rows["name"][code < 0]):
            names.count(self._file.names[name], place, times)
        for name, times in _counted(rows["name"][(code >= 0) & (rows["kind"] == COMM)]):
            names.num_sums += times * names.is_sum(self._file.names[name], place)

    def _is_op(self, rows: Rows) -> NDArray[np.bool_]:
        code = self._code[rows["name"]]
        stream = np.full(NUM_CODES + 1, _NO_STREAM, np.int64)  # the last one for no code
        stream[list(self._stream)] = list(self._stream.values())
        on_gpu, on_host = rows["kind"] == GPU, rows["kind"] == HOST
        is_main = stream[code] == rows["lane"]
        has_gpu = stream[code] > _NO_STREAM
        is_unused = on_gpu & (stream[code] == _BY_HOST)
        self._losses.num_gpu_unused += int(is_unused.sum())
        is_elsewhere = on_gpu & (code >= 0) & ~is_main & ~is_unused
        self._losses.num_other_streams += int(is_elsewhere.sum())
        return np.asarray((code >= 0) & np.where(on_gpu, is_main, ~on_host | ~has_gpu))

    def _steps(self, rows: Rows) -> Ints:
        by_host = self._host_steps.steps_of(rows["start_ns"])
        step = by_host
        on_host = rows["kind"] == HOST
        if self._gpu_steps.steps.size:
            step = np.where(on_host, by_host, self._steps_on_gpu(rows))
        else:
            self._losses.num_by_host_steps += int((~on_host & (by_host != OUTSIDE_STEPS)).sum())
        told = self._numbers["step"][rows["name"]]
        if not self.steps and (told < 0).any():
            raise InvalidTrace(
                f"{self._file.path.name}: has no ProfilerStep: call profiler.step() after each "
                "step, or name the step in a group (?P<step>[0-9]+) of --map"
            )
        return np.where(told >= 0, told, step)

    def _steps_on_gpu(self, rows: Rows) -> Ints:
        # By the marks of its own stream: the copy stream may enter the next step much earlier.
        step = self._gpu_steps.steps_of(rows["start_ns"])
        for lane in np.unique(rows["lane"]).tolist():
            if windows := self._stream_steps.get(lane):
                is_of_lane = rows["lane"] == lane
                step[is_of_lane] = windows.steps_of(rows["start_ns"][is_of_lane])
        return step

    def _count(self, rows: Rows) -> None:
        self._losses.num_ops += rows.size
        self._losses.num_on_host += int((rows["kind"] == HOST).sum())


def _counted(names: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Names with their counts."""
    found, times = np.unique(names, return_counts=True)
    return list(zip(found.tolist(), times.tolist(), strict=True))


def _summed(code: Ints, rows: Rows) -> list[tuple[tuple[int, int], int]]:
    """Total length by (op type, stream)."""
    key = code << 32 | (rows["lane"].astype(np.int64) + 1)
    keys, position = np.unique(key, return_inverse=True)
    total = np.zeros(keys.size, np.int64)
    np.add.at(total, position, rows["duration_ns"])
    parts = zip(keys.tolist(), total.tolist(), strict=True)
    return [((each >> 32, (each & 0xFFFFFFFF) - 1), length) for each, length in parts]
