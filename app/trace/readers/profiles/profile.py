"""One rank's plain profile: its steps, what its GPU did when, and its collectives.

A kernel belongs to the step in which the host launched it, whenever it runs: hosts run ahead of
their GPUs, by whole steps in a short profile. On the GPU a step ends with the last of its kernels,
and begins where the one before it ended.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.readers.kineto.process_groups import DistributedInfo
from app.trace.readers.kineto.trace_file import step_number
from app.trace.readers.profiles import events as profile_events
from app.trace.readers.profiles.events import COMPUTING, HostMark, ProfileEvents
from app.trace.readers.profiles.rank_collectives import RankCollective, collectives_of
from app.trace.window import Floats, Ints

PROFILER, OPTIMIZER, WHOLE_FILE = "ProfilerStep", "Optimizer.step", "file"
OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class HostSteps:
    """The steps of one file as its host went through them, in order.

    `source` is `PROFILER`, `OPTIMIZER` or `WHOLE_FILE`; `numbers` as the file counts them, from 0
    where it does not. Shapes: `start_ns` and `end_ns` [steps]. `is_on_gpu` says that the marks are
    the GPU's own, as nothing was recorded on the host.
    """

    source: str
    numbers: tuple[int, ...]
    start_ns: Ints
    end_ns: Ints
    is_on_gpu: bool = False

    def at(self, time_ns: Ints) -> Ints:
        """[times] index of the last step begun; `OUTSIDE` before the first and after the last."""
        found = np.searchsorted(self.start_ns, time_ns, "right") - 1
        return np.where(time_ns > self.end_ns[-1], OUTSIDE, found)


def host_steps(events: ProfileEvents) -> HostSteps:
    """Steps by the profiler's marks, else by the optimizer's, else the file as one."""
    if events.profiler_steps:
        return _by_profiler(events.profiler_steps)
    if events.gpu_steps:
        return replace(_by_profiler(events.gpu_steps), is_on_gpu=True)
    if events.optimizer_steps:
        return _by_optimizer(events.optimizer_steps)
    low, high = -(2**62), 2**62
    return HostSteps(WHOLE_FILE, (0,), np.array([low], np.int64), np.array([high], np.int64))


def _by_profiler(marks: list[HostMark]) -> HostSteps:
    spans: dict[tuple[int, str], tuple[int, int]] = {}
    main = _busiest(marks)
    for mark in marks:
        number = step_number(mark.name)
        if number is not None and mark.thread == main:
            spans[number, f"{mark.start_ns}"] = mark.start_ns, mark.end_ns
    ordered = sorted((start, end, number) for (number, _), (start, end) in spans.items())
    numbers = tuple(number for _, _, number in ordered)
    if len(set(numbers)) < len(numbers) or list(numbers) != sorted(numbers):
        numbers = tuple(range(len(ordered)))  # several cycles in one file
    return HostSteps(
        PROFILER,
        numbers,
        np.array([start for start, _, _ in ordered], np.int64),
        np.array([end for _, end, _ in ordered], np.int64),
    )


def _busiest(marks: list[HostMark]) -> str:
    """Marks of the thread with the most; other threads may repeat them."""
    threads = [mark.thread for mark in marks]
    return max(dict.fromkeys(threads), key=threads.count)


def _by_optimizer(marks: list[HostMark]) -> HostSteps:
    """Steps that end with the optimizer (the last of several)."""
    last = max(marks, key=lambda mark: mark.end_ns)
    ends = sorted(mark.end_ns for mark in marks if mark.name == last.name)
    starts = [-(2**62), *(end + 1 for end in ends[:-1])]
    return HostSteps(
        OPTIMIZER,
        tuple(range(len(ends))),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
    )


@dataclass(frozen=True, slots=True)
class GpuSteps:
    """The same steps on the GPU.

    Shapes: `of_kernel` [kernels], index of the step or `OUTSIDE`; `launch_ns` [kernels], when the
    host launched it, -1 where the file does not say; `bounds_ns` [steps + 1], where steps begin and
    end.
    """

    of_kernel: Ints
    launch_ns: Ints
    bounds_ns: Ints

    @property
    def num_unlaunched(self) -> int:
        """How many kernels have no launch in the file."""
        return int((self.launch_ns < 0).sum())


def gpu_steps(events: ProfileEvents, host: HostSteps) -> GpuSteps:
    """Kernels by step, and each step's bounds on the GPU.

    A kernel without a launch in the file belongs to the step within whose bounds it starts. Where
    no kernel has one, or the marks are the GPU's own, kernels belong to the step that had begun
    when they start.
    """
    start_ns = np.asarray(events.start_ns, np.int64)
    end_ns = start_ns + np.asarray(events.duration_ns, np.int64)
    launch_ns = _launches(events)
    has_launch = launch_ns >= 0
    if host.is_on_gpu or host.source == WHOLE_FILE or not has_launch.any():
        of_kernel = host.at(start_ns)
        return GpuSteps(of_kernel, launch_ns, _bounds(of_kernel, start_ns, end_ns, host))
    of_kernel = np.where(has_launch, host.at(launch_ns), OUTSIDE)
    bounds_ns = _bounds(of_kernel, start_ns, end_ns, host)
    place = np.searchsorted(bounds_ns, start_ns, "right") - 1
    is_inside = ~has_launch & (place >= 0) & (place < len(host.numbers))
    return GpuSteps(np.where(is_inside, place, of_kernel), launch_ns, bounds_ns)


def _launches(events: ProfileEvents) -> Ints:
    """[kernels] launch time of each, -1 if not in the file."""
    correlation = np.asarray(events.launch_correlation, np.int64)
    wanted = np.asarray(events.correlation, np.int64)
    if not correlation.size:
        return np.full(wanted.size, -1, np.int64)
    order = np.argsort(correlation, kind="stable")
    correlation, at_ns = correlation[order], np.asarray(events.launch_ns, np.int64)[order]
    place = np.minimum(np.searchsorted(correlation, wanted), correlation.size - 1)
    is_known = (correlation[place] == wanted) & (wanted >= 0)
    return np.where(is_known, np.maximum(at_ns[place], 0), -1)


def _bounds(of_kernel: Ints, start_ns: Ints, end_ns: Ints, host: HostSteps) -> Ints:
    """[steps + 1]; a step without kernels is empty."""
    num_steps = len(host.numbers)
    is_inside = of_kernel >= 0
    if not is_inside.any():
        return np.zeros(num_steps + 1, np.int64)
    ends = np.full(num_steps, -(2**62), np.int64)
    np.maximum.at(ends, of_kernel[is_inside], end_ns[is_inside])
    first = int(start_ns[is_inside].min())
    if host.source == PROFILER and int(of_kernel[is_inside].min()) == 0:
        # The host's step may be longer than its kernels: it began that much earlier.
        first = min(first, int(ends[0] - (host.end_ns[0] - host.start_ns[0])))
    earlier = end_ns[~is_inside & (start_ns < int(start_ns[is_inside].min()))]
    if earlier.size:  # the GPU was still busy with steps before
        first = max(first, min(int(earlier.max()), int(start_ns[is_inside].min())))
    return np.maximum.accumulate(np.concatenate([[first], ends]))


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Intervals in which the GPU worked, by the file's clock in nanoseconds.

    Shapes: all [kernels]; `kind` is `COMPUTING`, `COMMUNICATING` or `COPYING` of `events`,
    `launch_ns` -1 where the file does not have the launch, `step` an index or -1.
    """

    kind: NDArray[np.int8]
    start_ns: Ints
    end_ns: Ints
    launch_ns: Ints
    step: Ints


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One rank's file. `rank` and `world_size` are None where it does not say them.

    `steps` are numbers as the file has them and `steps_from` where they come from;
    `host_start_ns` [steps] is when the host began them and `bounds_ns` [steps + 1] are their ends
    on the GPU. `data_wait_s` [steps] is what the host waited for PyTorch's data loader, `blocks`
    [steps] the blocks in the grids of the computing kernels, NaN where the file does not say them.
    `device` is the GPU's number on its host.
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
        """The profile as of this rank, without single kernels."""
        nothing = np.empty(0, np.int64)
        work = GpuWork(nothing.astype(np.int8), nothing, nothing, nothing, nothing)
        return replace(self, rank=rank, work=work)


def read(path: Path) -> RankProfile:
    """One rank's file.

    Raises:
        InvalidTrace: it cannot be read, or shows no training on GPUs; the message says which.
    """
    events = profile_events.read(path)
    _refuse_others(events)
    host = host_steps(events)
    gpu = gpu_steps(events, host)
    start_ns = np.asarray(events.start_ns, np.int64)
    work = GpuWork(
        np.asarray(events.kind, np.int8),
        start_ns,
        start_ns + np.asarray(events.duration_ns, np.int64),
        gpu.launch_ns,
        gpu.of_kernel,
    )
    if not (gpu.of_kernel >= 0).any():
        raise InvalidTrace(
            f"{path.name}: none of its {len(events.kind):,} kernels was launched in one of its "
            f"{len(host.numbers):,} steps ({host.source}): profile whole steps"
        )
    devices = np.unique(np.asarray(events.device, np.int64))
    info = events.info
    return RankProfile(
        path.name,
        events.rank,
        info.world_size if info else None,
        info,
        events.host,
        int(devices[0]) if devices.size == 1 and 0 <= devices[0] < 1024 else None,
        events.is_amd,
        host.source,
        host.numbers,
        host.start_ns,
        gpu.bounds_ns,
        _data_wait_s(events, host),
        _blocks(events, work, len(host.numbers)),
        gpu.num_unlaunched,
        work,
        collectives_of(events, work.step, work.launch_ns),
    )


def _blocks(events: ProfileEvents, work: GpuWork, num_steps: int) -> Floats:
    """[steps], work of the computing kernels, as blocks of their grids."""
    chosen = (work.kind == COMPUTING) & (work.step >= 0)
    blocks = np.asarray(events.blocks, np.int64)[chosen]
    if not blocks.size or (blocks < 0).any():
        return np.full(num_steps, np.nan)
    return np.bincount(work.step[chosen], blocks, num_steps).astype(np.float64)


def _data_wait_s(events: ProfileEvents, host: HostSteps) -> Floats:
    total_s = np.zeros(len(host.numbers))
    if events.data_waits:
        starts = np.array([mark.start_ns for mark in events.data_waits], np.int64)
        lengths = np.array([mark.end_ns - mark.start_ns for mark in events.data_waits], np.int64)
        step = host.at(starts)
        np.add.at(total_s, step[step >= 0], lengths[step >= 0] / 1e9)
    return total_s


def _refuse_others(events: ProfileEvents) -> None:
    """Refuse profiles that show no training on GPUs, naming their kind."""
    name = events.path.name
    if not events.kind:
        if events.devices_unread:
            vendor = events.devices_unread.most_common(1)[0][0]
            raise InvalidTrace(
                f"{name}: is a profile of {vendor} devices, whose events are not read: give "
                "profiles of CUDA or ROCm GPUs"
            )
        if not events.num_ops and not events.launch_ns:
            raise InvalidTrace(
                f"{name}: has no events of torch.profiler: give a file that it has exported"
            )
        raise InvalidTrace(
            f"{name}: a CPU-only profile, no GPU activity in it: record with "
            "ProfilerActivity.CUDA, or record the training with Paceline's client"
        )
    if not events.is_training and (events.num_ops or events.is_serving):
        server = " of a language model server" if events.is_serving else ""
        raise InvalidTrace(
            f"{name}: an inference profile{server}: it has no backward pass and no optimizer "
            "step; Paceline analyses training"
        )
