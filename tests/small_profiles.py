"""Small handwritten profiles in microseconds, and the path of real ones."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.shared_traces import MAY_SKIP, SHARED_TRACES

SHARED_GPU = SHARED_TRACES.parent / "gpu"
SHARED_REAL = SHARED_TRACES.parent / "real"

needs_profiles = pytest.mark.skipif(
    not (SHARED_GPU.is_dir() and SHARED_REAL.is_dir()) and MAY_SKIP,
    reason="the profiles are not beside the repository (../shared/gpu, ../shared/real)",
)

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class SmallProfile:
    """One rank's file: launches on the host's thread 1, kernels on streams, all in microseconds."""

    def __init__(self, rank: int | None = 0, world: int | None = 1, **more: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.content: dict[str, Any] = {"schemaVersion": 1, **more}
        info: dict[str, Any] = {"backend": "nccl"}
        if rank is not None:
            info["rank"] = rank
        if world is not None:
            info["world_size"] = world
        if rank is not None or world is not None:
            self.content["distributedInfo"] = info
        self._correlation = 0

    def event(
        self, category: str, name: str, ts: float, dur: float, tid: object = 1, **args: Any
    ) -> "SmallProfile":
        """Any event that has a length."""
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur}
            | {"args": args}
        )
        return self

    def steps(self, *bounds: float, first: int = 0) -> "SmallProfile":
        """ProfilerStep marks between these times."""
        for number, (start, end) in enumerate(pairwise(bounds), first):
            self.event("user_annotation", f"ProfilerStep#{number}", start, end - start)
        return self

    def optimizer(self, *ends: float) -> "SmallProfile":
        """Optimizer steps of 1 us that end at these times."""
        for end in ends:
            self.event("user_annotation", "Optimizer.step#AdamW.step", end - 1, 1)
        return self

    def backward(self, at: float = 0) -> "SmallProfile":
        """An operation that only training has."""
        return self.event("cpu_op", "autograd::engine::evaluate_function: MulBackward0", at, 1)

    def kernel(
        self,
        start: float,
        dur: float,
        *,
        launch: float | None = None,
        name: str = "gemm",
        stream: int = 7,
        category: str = "kernel",
        runtime: str = "cuda_runtime",
        function: str = "cudaLaunchKernel",
        **args: Any,
    ) -> "SmallProfile":
        """A kernel, and its launch if given."""
        self._correlation += 1
        if launch is not None:
            self.event(runtime, function, launch, 1, correlation=self._correlation)
        return self.event(
            category,
            name,
            start,
            dur,
            stream,
            correlation=self._correlation,
            stream=stream,
            device=0,
            **args,
        )

    def all_reduce(
        self, start: float, end: float, *, launch: float | None = None, ranks: Any, **args: Any
    ) -> "SmallProfile":
        """A NCCL kernel with its collective: 1,000 floats among these ranks."""
        says = {
            "Collective name": "allreduce",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(ranks)),
            "Group size": len(ranks),
            "In msg nelems": 1000,
            "Out msg nelems": 1000,
            "dtype": "Float",
        }
        return self.kernel(
            start, end - start, launch=launch, name=ALL_REDUCE, stream=20, **{**says, **args}
        )

    def write(self, folder: Path, name: str = "rank0.json") -> Path:
        """Write the file, compressed if its name ends so."""
        path = folder / name
        text = json.dumps(self.content | {"traceEvents": self.events}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path
