"""One rank's profile without annotated operations: its steps, the GPU's work, and its collectives.

A kernel belongs to the step in which the host launched it, since hosts run ahead of their GPUs, in
short profiles by whole steps. On the GPU a step ends with its last kernel, and begins at the end of
the step before it.

Newer files have the collective and its group in the args of a communication kernel. Other kernels
are matched with the host's activity when it launched them: a collective with the same external id,
the sends and receives that it had coalesced, or an annotation such as `nccl:all_to_all`.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.collectives import RECEIVE, SEND
from app.trace.readers.disk_rows import Rows
from app.trace.readers.kineto import event_names
from app.trace.readers.kineto.gpu_events import COPIES, ProfileFile
from app.trace.readers.kineto.process_groups import DistributedInfo
from app.trace.readers.kineto.trace_file import (
    COMM,
    GPU,
    HOST,
    OUTSIDE,
    Collective,
    StepBounds,
    StepMark,
)
from app.trace.window import Floats, Ints

PROFILER_STEPS, OPTIMIZER_STEPS, WHOLE_FILE = "ProfilerStep", "Optimizer.step", "file"
# Kinds of GPU work.
COMPUTING, COMMUNICATING, COPYING = range(3)
_EVER_NS = 2**62  # beyond all times of a file


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Intervals in which the GPU worked, by the file's clock in nanoseconds.

    Shapes: all [kernels]; `kind` is `COMPUTING`, `COMMUNICATING` or `COPYING`, `launch_ns` -1 if
    the file lacks the launch, `step` an index or `OUTSIDE`.
    """

    kind: NDArray[np.int8]
    start_ns: Ints
    end_ns: Ints
    launch_ns: Ints
    step: Ints

    def select(self, rows: NDArray[np.bool_]) -> "GpuWork":
        """Only the chosen rows."""
        return GpuWork(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True, slots=True)
class RankCollective:
    """One communication kernel inside a step (an index).

    `calls`: the collective that it carries out, or the coalesced sends and receives; an unknown
    kind is "". `order_ns`: the time of its launch, or its start if that is unknown.
    """

    calls: tuple[Collective, ...]
    step: int
    stream: int
    order_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RankProfile:
    """The profile in one rank's file; an unknown `rank` or `world_size` is None.

    `steps` are the file's numbers, and `steps_from` is their source. `host_start_ns` [steps]: when
    the host began them. `bounds_ns` [steps + 1]: their bounds on the GPU. `data_wait_s` [steps]:
    the host's time in PyTorch's data loader. `blocks` [steps]: the number of blocks in the grids of
    computing kernels, NaN if unknown. `device`: the GPU's number on its host.
    """

    file: str
    rank: int | None
    world_size: int | None
    info: DistributedInfo | None
    host: str | None
    device: int | None
    is_amd: bool
    steps_from: str
    steps: tuple[int, ...]
    host_start_ns: Ints
    bounds_ns: Ints
    data_wait_s: Floats
    blocks: Floats
    num_unlaunched: int
    work: GpuWork
    collectives: list[RankCollective] = field(default_factory=list)

    @property
    def step_s(self) -> Floats:
        """[steps] length of each step on the GPU."""
        return np.diff(self.bounds_ns) / 1e9

    def as_rank(self, rank: int) -> "RankProfile":
        """The profile under this rank, without its kernels."""
        nothing = np.zeros(self.work.kind.size, np.bool_)
        return replace(self, rank=rank, work=self.work.select(nothing))


def read(path: Path) -> RankProfile:
    """The profile in one rank's file; raises InvalidTrace if it has no training on GPUs."""
    file = ProfileFile(path)
    kernels, launches = file.kernels, file.launches
    _refuse_other_profiles(file, kernels)
    ranges = file.ranges.all()
    host = _host_steps(file, ranges)
    launch = _launch_of(kernels, launches)
    collective = kernels["collective"]
    kind = np.where(collective == COPIES, COPYING, COMPUTING).astype(np.int8)
    kind[collective >= 0] = COMMUNICATING
    start_ns = np.ascontiguousarray(kernels["start_ns"])
    end_ns = start_ns + kernels["duration_ns"]
    launch_ns, lane = np.full(launch.size, -1, np.int64), np.full(launch.size, -1, np.int64)
    is_known = launch >= 0
    launch_ns[is_known] = np.maximum(launches["at_ns"][launch[is_known]], 0)
    lane[is_known] = launches["lane"][launch[is_known]]
    step, bounds_ns = _gpu_steps(host, start_ns, end_ns, launch_ns)
    if not (step >= 0).any():
        raise InvalidTrace(
            f"{path.name}: none of its {kernels.size:,} kernels was launched in one of its "
            f"{len(host.bounds.numbers):,} steps ({host.source}): profile whole steps"
        )
    devices = np.unique(kernels["device"])
    work = GpuWork(kind, start_ns, end_ns, launch_ns, step)
    return RankProfile(
        path.name,
        file.rank,
        file.info.world_size if file.info else None,
        file.info,
        file.host,
        int(devices[0]) if devices.size == 1 and 0 <= devices[0] < 1024 else None,
        file.is_amd,
        host.source,
        host.bounds.numbers,
        host.bounds.start_ns,
        bounds_ns,
        _data_wait_s(file.named(ranges, event_names.LOADER_OR_ITS_ITERATOR), host.bounds),
        _blocks(kernels, work, len(host.bounds.numbers)),
        int((~is_known).sum()),
        work,
        _collectives(file, kernels, work, lane, _HostCalls(file, ranges)),
    )


def _refuse_other_profiles(file: ProfileFile, kernels: Rows) -> None:
    """Refuse profiles that show no training on GPUs."""
    name = file.path.name
    if not kernels.size:
        if file.devices_unread:
            vendor = file.devices_unread.most_common(1)[0][0]
            raise InvalidTrace(
                f"{name}: is a profile of {vendor} devices, whose events are not read: give "
                "profiles of CUDA or ROCm GPUs"
            )
        if not file.num_ops and not file.launches.size:
            raise InvalidTrace(
                f"{name}: has no events of torch.profiler: give a file that it has exported"
            )
        raise InvalidTrace(
            f"{name}: a CPU-only profile, no GPU activity in it: record with "
            "ProfilerActivity.CUDA, or record the training with Paceline's client"
        )
    if not file.is_training and (file.num_ops or file.is_serving):
        server = " of a language model server" if file.is_serving else ""
        raise InvalidTrace(
            f"{name}: an inference profile{server}: it has no backward pass and no optimizer "
            "step; Paceline analyses training"
        )


@dataclass(frozen=True, slots=True)
class _HostSteps:
    """The steps of a file on its host.

    `source` is `PROFILER_STEPS`, `OPTIMIZER_STEPS` or `WHOLE_FILE`. With `is_on_gpu` the marks are
    those on the GPU, since the host has none.
    """

    source: str
    bounds: StepBounds
    is_on_gpu: bool = False


def _host_steps(file: ProfileFile, ranges: Rows) -> _HostSteps:
    """Steps by the profiler's marks, else by the optimizer's steps, else the whole file."""
    if marks := file.steps[HOST] or file.steps[GPU]:
        return _HostSteps(PROFILER_STEPS, _by_profiler(marks), is_on_gpu=not file.steps[HOST])
    optimizers = file.named(ranges, event_names.OPTIMIZER)
    if not optimizers.size:
        return _HostSteps(WHOLE_FILE, StepBounds.of([(-_EVER_NS, _EVER_NS, 0)]))
    # A step ends with the optimizer, or with the last one of several.
    end_ns = optimizers["start_ns"] + optimizers["duration_ns"]
    last = optimizers["name"][end_ns.argmax()]
    ends = sorted(end_ns[optimizers["name"] == last].tolist())
    starts = [-_EVER_NS, *(end + 1 for end in ends[:-1])]
    spans = list(zip(starts, ends, range(len(ends)), strict=True))
    return _HostSteps(OPTIMIZER_STEPS, StepBounds.of(spans))


def _by_profiler(marks: list[StepMark]) -> StepBounds:
    # The marks of the thread with most of them; other threads may repeat them.
    main = Counter(mark.lane for mark in marks).most_common(1)[0][0]
    ends = {(mark.number, mark.start_ns): mark.end_ns for mark in marks if mark.lane == main}
    bounds = StepBounds.of(sorted((start, end, number) for (number, start), end in ends.items()))
    numbers = bounds.numbers
    if len(set(numbers)) < len(numbers) or list(numbers) != sorted(numbers):
        return replace(bounds, numbers=tuple(range(len(numbers))))  # several cycles in one file
    return bounds


def _launch_of(kernels: Rows, launches: Rows) -> Ints:
    """[kernels] row of the kernel's launch, -1 if it is not in the file."""
    wanted = kernels["correlation"]
    if not launches.size:
        return np.full(wanted.size, -1, np.int64)
    order = np.argsort(launches["correlation"], kind="stable")
    correlation = launches["correlation"][order]
    place = np.minimum(np.searchsorted(correlation, wanted), correlation.size - 1)
    return np.where((correlation[place] == wanted) & (wanted >= 0), order[place], -1)


def _gpu_steps(
    host: _HostSteps, start_ns: Ints, end_ns: Ints, launch_ns: Ints
) -> tuple[Ints, Ints]:
    """[kernels] the step, `OUTSIDE` for none, and [steps + 1] the bounds of the steps on the GPU.

    A kernel belongs to the step of its launch; without a launch, to the step within whose bounds it
    starts. If no kernel has a launch, or the marks are those on the GPU, it belongs to the last
    step that was begun before it.
    """
    has_launch = launch_ns >= 0
    if host.is_on_gpu or host.source == WHOLE_FILE or not has_launch.any():
        step = host.bounds.at(start_ns)
        return step, _bounds(step, start_ns, end_ns, host)
    step = np.where(has_launch, host.bounds.at(launch_ns), OUTSIDE)
    bounds_ns = _bounds(step, start_ns, end_ns, host)
    place = np.searchsorted(bounds_ns, start_ns, "right") - 1
    is_inside = ~has_launch & (place >= 0) & (place < len(host.bounds.numbers))
    return np.where(is_inside, place, step), bounds_ns


def _bounds(step: Ints, start_ns: Ints, end_ns: Ints, host: _HostSteps) -> Ints:
    """[steps + 1]; a step without kernels is empty."""
    num_steps = len(host.bounds.numbers)
    is_inside = step >= 0
    if not is_inside.any():
        return np.zeros(num_steps + 1, np.int64)
    ends = np.full(num_steps, -_EVER_NS, np.int64)
    np.maximum.at(ends, step[is_inside], end_ns[is_inside])
    begins = first = int(start_ns[is_inside].min())
    if host.source == PROFILER_STEPS and int(step[is_inside].min()) == 0:
        # The first step is at least as long as on the host.
        first = min(first, int(ends[0] - (host.bounds.end_ns[0] - host.bounds.start_ns[0])))
    earlier = end_ns[~is_inside & (start_ns < begins)]
    if earlier.size:  # the GPU still ran kernels of earlier steps
        first = max(first, min(int(earlier.max()), begins))
    return np.maximum.accumulate(np.concatenate([[first], ends]))


def _data_wait_s(waits: Rows, bounds: StepBounds) -> Floats:
    step = bounds.at(waits["start_ns"])
    total_s = np.zeros(len(bounds.numbers))
    np.add.at(total_s, step[step >= 0], waits["duration_ns"][step >= 0] / 1e9)
    return total_s


def _blocks(kernels: Rows, work: GpuWork, num_steps: int) -> Floats:
    """[steps], number of blocks in the grids of the computing kernels."""
    chosen = (work.kind == COMPUTING) & (work.step >= 0)
    blocks = kernels["blocks"][chosen]
    if not blocks.size or (blocks < 0).any():
        return np.full(num_steps, np.nan)
    return np.bincount(work.step[chosen], blocks, num_steps).astype(np.float64)


def _collectives(
    file: ProfileFile, kernels: Rows, work: GpuWork, lane: Ints, on_host: "_HostCalls"
) -> list[RankCollective]:
    """All communication kernels that are in a step, in the order of their launches.

    `lane` [kernels] is the launching thread.
    """
    chosen = np.flatnonzero((work.kind == COMMUNICATING) & (work.step >= 0))
    columns = (
        *(kernels["collective"], kernels["external_id"], kernels["stream"]),
        *(lane, work.launch_ns, work.step, work.start_ns, work.end_ns),
    )
    collectives = []
    for number, external_id, stream, thread, launched_ns, step, start_ns, end_ns in zip(
        *(column[chosen].tolist() for column in columns), strict=True
    ):
        calls: tuple[Collective, ...] = (file.collectives[number],)
        if not calls[0].group and not calls[0].ranks and launched_ns >= 0:
            calls = on_host.calls(external_id, thread, launched_ns) or calls
        order_ns = launched_ns if launched_ns >= 0 else start_ns
        collectives.append(RankCollective(calls, step, stream, order_ns, start_ns, end_ns))
    return sorted(collectives, key=lambda collective: (collective.order_ns, collective.start_ns))


class _LaneRanges(NamedTuple):
    """Ranges of one thread, in order of their starts."""

    start_ns: list[int]
    end_ns: list[int]
    name: list[int]

    def enclosing(self, at_ns: int) -> int | None:
        """Index of the last range that began before a time, if it had not ended by then."""
        place = bisect_right(self.start_ns, at_ns) - 1
        return place if place >= 0 and at_ns <= self.end_ns[place] else None


_NO_RANGES = _LaneRanges([], [], [])


class _HostCalls:
    """The host's calls of collectives, and the annotations around them."""

    def __init__(self, file: ProfileFile, ranges: Rows) -> None:
        self._file = file
        is_call = ranges["kind"] == COMM
        by_id = ranges[is_call & (ranges["external_id"] >= 0)]
        self._by_id = dict(zip(by_id["external_id"].tolist(), by_id["name"].tolist(), strict=True))
        self._calls = _by_lane(ranges[is_call])
        self._coalesced = _by_lane(file.named(ranges, event_names.COALESCED))
        self._annotated = _by_lane(file.named(ranges, event_names.ANNOTATED))

    def calls(self, external_id: int, lane: int, at_ns: int) -> tuple[Collective, ...]:
        """The calls that a launch carried out; empty if they are unknown."""
        collectives = self._file.collectives
        if (number := self._by_id.get(external_id)) is not None:
            return (collectives[number],)
        calls = self._calls.get(lane, _NO_RANGES)
        coalesced = self._coalesced.get(lane, _NO_RANGES)
        place = coalesced.enclosing(at_ns)
        if place is not None:  # calls since the previous coalesced launch
            after_ns = coalesced.end_ns[place - 1] if place else -_EVER_NS
            first = bisect_right(calls.start_ns, after_ns)
            last = bisect_right(calls.start_ns, coalesced.start_ns[place])
            inside = [collectives[number] for number in calls.name[first:last]]
            # Other collectives since then were launched on their own, with kernels of their own.
            return tuple([call for call in inside if call.kind in (SEND, RECEIVE)] or inside)
        place = calls.enclosing(at_ns)
        if place is not None:
            return (collectives[calls.name[place]],)
        annotated = self._annotated.get(lane, _NO_RANGES)
        place = annotated.enclosing(at_ns)
        if place is None:
            return ()
        match = event_names.ANNOTATED.match(self._file.texts[annotated.name[place]])
        return (Collective(match[1] if match else ""),)


def _by_lane(ranges: Rows) -> dict[int, _LaneRanges]:
    """The ranges by thread."""
    ordered = ranges[np.lexsort((ranges["start_ns"], ranges["lane"]))]
    lanes, first = np.unique(ordered["lane"], return_index=True)
    return {
        lane: _LaneRanges(
            rows["start_ns"].tolist(),
            (rows["start_ns"] + rows["duration_ns"]).tolist(),
            rows["name"].tolist(),
        )
        for lane, rows in zip(lanes.tolist(), np.split(ordered, first)[1:], strict=True)
        if lane >= 0
    }
