"""One rank's plain profile: its steps, what its GPU did when, and its collectives."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.readers.kineto_groups import DistributedInfo
from app.trace.readers.profiles import events as profile_events
from app.trace.readers.profiles.collectives import RankCollective, collectives_of
from app.trace.readers.profiles.events import COMPUTING, ProfileEvents
from app.trace.readers.profiles.steps import HostSteps, gpu_steps, host_steps
from app.trace.window import Floats, Ints


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
        """The same file, of this rank, without the GPU's single kernels."""
        nothing = np.empty(0, np.int64)
        work = GpuWork(nothing.astype(np.int8), nothing, nothing, nothing, nothing)
        return replace(self, rank=rank, work=work)


def read(path: Path) -> RankProfile:
    """One rank's file.

    Raises:
        InvalidTrace: it cannot be read, or is of no training on GPUs; the message says which.
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
    """[steps], how much the kernels that compute have to do, by the size of their grids."""
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
    """Refuse files of no training on GPUs, by what they are."""
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
