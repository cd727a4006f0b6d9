"""The operations of one Kineto file, and what of it is lost."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.ops import NUM_CODES, OP_CODES
from app.trace.readers.foreign import Lack
from app.trace.readers.kineto_file import COMM, GPU, HOST, KinetoFile
from app.trace.readers.kineto_groups import RankPlace
from app.trace.readers.kineto_names import KinetoNames
from app.trace.readers.kineto_steps import OUTSIDE, StepWindows
from app.trace.readers.merging import Rows
from app.trace.readers.numbering import NUMBERED
from app.trace.window import Ints

Columns = dict[str, Ints]
# They are of a model chunk, by whatever name or group they are known.
_OF_CHUNK = [*NUMBERED, OP_CODES["params-all-gather"], OP_CODES["grads-reduce-scatter"]]
# In place of a type's stream on the GPU.
_NONE, _BY_HOST = -2, -3


@dataclass(slots=True)
class Losses:
    """How many operations of all files are told badly, or not at all."""

    num_ops: int = 0
    num_outside: int = 0
    num_on_host: int = 0
    num_gpu_unused: int = 0
    num_by_host_steps: int = 0
    num_other_streams: int = 0
    num_without_group: int = 0

    @property
    def is_host_alone(self) -> bool:
        """Whether no operation has times of a GPU."""
        return self.num_on_host == self.num_ops

    def lacks(self) -> list[Lack]:
        """The same in words."""
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
        return [Lack(what, cost) for count, what, cost in said if count]


class OpsOfFile:
    """A file's operations, with their steps.

    Raises:
        InvalidTrace: the file has operations and no steps.
    """

    def __init__(
        self, file: KinetoFile, place: RankPlace, names: KinetoNames, losses: Losses
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
            is_plain = np.isin(self._code, _OF_CHUNK) & (self._numbers["mc"] < 0)
            self._numbers["mc"][is_plain] = 0
        self._host_steps = StepWindows(file.path.name, file.steps[HOST])
        self._gpu_steps = StepWindows(file.path.name, file.steps[GPU], has_streams=True)
        self._stream_steps = {
            lane: StepWindows(file.path.name, windows, has_streams=True)
            for lane, windows in file.steps_of_stream.items()
            if lane >= 0
        }
        self._stream = self._streams(names, place)
        losses.num_without_group += file.num_without_group
        self.steps = np.union1d(self._host_steps.steps, self._gpu_steps.steps).tolist()

    def columns(self) -> Iterator[Columns]:
        """Steps and the other columns, some rows at a time; starts by the file's own clock."""
        for rows in self._file.rows.blocks():
            chosen = rows[self._is_op(rows)]
            if not chosen.size:
                continue
            step = self._steps(chosen)
            is_inside = step != OUTSIDE
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

    def _streams(self, names: KinetoNames, place: RankPlace) -> dict[int, int]:
        """For each op type that the GPU annotates, the stream with most of its time."""
        total: Counter[tuple[int, int]] = Counter()
        on_host: set[int] = set()
        for rows in self._file.rows.blocks():
            code = self._code[rows["name"]]
            on_gpu = rows[(rows["kind"] == GPU) & (code >= 0)]
            for key, length in _summed(self._code[on_gpu["name"]], on_gpu):
                total[key] += length
            on_host.update(np.unique(code[rows["kind"] == HOST]).tolist())
            # What the host annotates is told once, though the GPU may repeat it.
            self._count_names(rows[rows["kind"] != GPU], names, place)
        found: dict[int, int] = {}
        for (code_, lane), _ in sorted(total.items(), key=lambda each: each[1]):
            found[code_] = lane
        computing = on_host.intersection(NUMBERED)
        if not computing <= found.keys():
            found |= dict.fromkeys(computing & found.keys(), _BY_HOST)
        return found

    def _count_names(self, rows: Rows, names: KinetoNames, place: RankPlace) -> None:
        code = self._code[rows["name"]]
        for name, times in _counted(rows["name"][code < 0]):
            names.count(self._file.names[name], place, times)
        for name, times in _counted(rows["name"][(code >= 0) & (rows["kind"] == COMM)]):
            names.num_sums += times * names.is_sum(self._file.names[name], place)

    def _is_op(self, rows: Rows) -> NDArray[np.bool_]:
        code = self._code[rows["name"]]
        stream = np.full(NUM_CODES + 1, _NONE, np.int64)  # the last one for no code
        stream[list(self._stream)] = list(self._stream.values())
        on_gpu, on_host = rows["kind"] == GPU, rows["kind"] == HOST
        is_main = stream[code] == rows["lane"]
        has_gpu = stream[code] > _NONE
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
            self._losses.num_by_host_steps += int((~on_host & (by_host != OUTSIDE)).sum())
        told = self._numbers["step"][rows["name"]]
        if not self.steps and (told < 0).any():
            raise InvalidTrace(
                f"{self._file.path.name}: has no ProfilerStep: call profiler.step() after each "
                "step, or name the step in a group (?P<step>[0-9]+) of --map"
            )
        return np.where(told >= 0, told, step)

    def _steps_on_gpu(self, rows: Rows) -> Ints:
        # By the marks of its own stream: that of copies may be in the next step long before.
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
    """Each name, and how often it is there."""
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
