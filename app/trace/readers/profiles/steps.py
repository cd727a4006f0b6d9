"""Which step does GPU work belong to, and when does a step end on the GPU?

A kernel belongs to the step in which the host launched it, whenever it runs: hosts run ahead of
their GPUs, by whole steps in a short profile. On the GPU a step ends with the last of its kernels,
and begins where the one before it ended.
"""

from dataclasses import dataclass, replace

import numpy as np

from app.trace.readers.profiles import names
from app.trace.readers.profiles.events import HostMark, ProfileEvents
from app.trace.window import Ints

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
        """[times] index of the step that had begun last, `OUTSIDE` before the first, after all."""
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
        number = names.step_number(mark.name)
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
    """The thread with most marks: others may repeat them."""
    threads = [mark.thread for mark in marks]
    return max(dict.fromkeys(threads), key=threads.count)


def _by_optimizer(marks: list[HostMark]) -> HostSteps:
    """A step ends where the optimizer does; of several optimizers, the one that is last."""
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
    """[kernels] when the host launched each, -1 where the file does not have it."""
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
