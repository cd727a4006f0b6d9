"""One rank's torch.profiler trace: launches of the host and kernels of the GPU."""

import gzip
import json
import statistics
from typing import NamedTuple

COMPUTE = 7  # PyTorch's default stream in these profiles
AHEAD_US = 200  # a kernel launched this long before did not wait for its launch
HOST = ("user_annotation", "cpu_op")
LAUNCHES = ("cuda_runtime", "cuda_driver")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class Launch(NamedTuple):
    """A kernel or copy: launch time on the host, stream, start and duration."""

    host_us: float
    stream: int
    start_us: float
    duration_us: float
    name: str

    @property
    def is_collective(self):
        return "nccl" in self.name


class Span(NamedTuple):
    """An operator or annotation of the host."""

    start_us: float
    end_us: float
    name: str


class Profile:
    """The profile of one rank."""

    def __init__(self, path):
        with gzip.open(path) as file:
            events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
        launched: dict[int, float] = {}
        for event in events:
            if event.get("cat") in LAUNCHES:
                number = event["args"].get("correlation")
                launched[number] = min(event["ts"], launched.get(number, event["ts"]))
        self.launches = sorted(
            Launch(
                launched[e["args"]["correlation"]],
                e["args"]["stream"],
                e["ts"],
                e["dur"],
                e["name"],
            )
            for e in events
            if e.get("cat") in DEVICE
        )
        self.host = sorted(
            Span(e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") in HOST
        )

    def named(self, name):
        return [span for span in self.host if span.name.startswith(name)]

    def top_level(self):
        """Host spans that lie in no other span."""
        found: list[Span] = []
        for span in self.host:
            if not found or span.start_us >= found[-1].end_us:
                found.append(span)
        return found

    def gap_us(self):
        """Median gap between two kernels of a stream, the second launched long before its start."""
        gaps = []
        last: dict[int, Launch] = {}
        for launch in sorted(self.launches, key=lambda each: each.start_us):
            before = last.get(launch.stream)
            last[launch.stream] = launch
            if before is not None and not (before.is_collective or launch.is_collective):
                gap_us = launch.start_us - before.start_us - before.duration_us
                if launch.host_us < launch.start_us - AHEAD_US and 0 <= gap_us < 50:
                    gaps.append(gap_us)
        return statistics.median(gaps)

    def gap_before_nccl_us(self):
        """Median gap from the end of the kernel that a collective waits for to its start."""
        gaps = []
        for each in self.launches:
            is_alone = each.stream != COMPUTE
            if each.is_collective and is_alone and each.host_us < each.start_us - AHEAD_US:
                ends_us = (
                    other.start_us + other.duration_us
                    for other in self.launches
                    if other.stream != each.stream and other.host_us < each.host_us
                )
                before_us = max((end for end in ends_us if end < each.start_us), default=0)
                gaps.append(each.start_us - before_us)
        return statistics.median(gaps)
