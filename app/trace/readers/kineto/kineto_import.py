"""Traces of torch.profiler (Kineto): one file a rank, JSON or JSON packed by gzip.

`sample` writes the tiny job as torch.profiler would have traced it.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from typing_extensions import override

from app.errors import InvalidTrace
from app.trace.readers.importing import HOST_TIMES, ImportOptions, OperationImport
from app.trace.readers.kineto.event_names import KinetoNames
from app.trace.readers.kineto.operations import KinetoOmissions, OpsOfFile
from app.trace.readers.kineto.process_groups import (
    ParallelPosition,
    is_all_data_parallel,
    position_of,
)
from app.trace.readers.kineto.trace_file import KernelCollective, KinetoFile
from app.trace.readers.op_spool import OpSpool
from app.trace.readers.sample_job import BEGAN_NS, DP_SIZE, PP_SIZE, STEPS, SampleOp, sample_ops
from app.trace.readers.spooled_import import ImportFacts, SpooledImport

__all__ = ["NAME", "open_files", "sample"]

NAME = "kineto"


def open_files(paths: Sequence[Path], options: ImportOptions) -> OperationImport:
    """The import of all ranks' files of one run."""
    return KinetoImport(paths, options)


class KinetoImport(SpooledImport):
    """All ranks' files: annotations and collectives that are operations, by name and group."""

    def __init__(self, paths: Sequence[Path], options: ImportOptions) -> None:
        super().__init__(paths, options)
        self._names = KinetoNames(options)
        self._losses = KinetoOmissions()
        self._sizes_told: dict[str, int] = {}
        self._file_of: dict[tuple[int, int], str] = {}  # (rank, step)
        self._has_clock = True

    @override
    def read(self, spool: OpSpool) -> ImportFacts:
        for path in self.paths:
            file = KinetoFile(path, self.options.spool_dir)
            spool.at = lambda name=path.name: name  # type: ignore[misc]
            try:
                self._take(spool, file)
            finally:
                file.rows.close()
        return ImportFacts(
            missing=[*self._losses.missing(), *self._names.missing()],
            sizes=self._sizes_told,
            labels=HOST_TIMES if self._losses.is_host_alone else {},
            has_clock=self._has_clock,
            numbers_microbatches=True,
        )

    def _take(self, spool: OpSpool, file: KinetoFile) -> None:
        name = file.path.name
        rank = file.rank
        if rank is None:
            if len(self.paths) > 1:
                raise InvalidTrace(
                    f"{name}: does not say of which rank it is: put it into the name, as rank3.json"
                )
            rank = 0
        self._refuse_pipeline_in_default_group(file)
        place = position_of(name, rank, file.info, self.options.sizes)
        self._agree(name, place)
        origin_ns = self._origin_ns(file)
        spool.place(rank, place.dp_rank, place.stage, peer=place.peer, host=file.host)
        ops = OpsOfFile(file, place, self._names, self._losses)
        for step in ops.steps:
            before = self._file_of.setdefault((rank, step), name)
            if before != name:
                raise InvalidTrace(
                    f"{name}: rank {rank} has step {step}, and in {before}, too: give each rank's "
                    "file once"
                )
        for columns in ops.columns():
            columns["start_ns"] += origin_ns
            num_ops = columns["step"].size
            spool.add_rows(np.full(num_ops, rank, np.int64), columns.pop("step"), **columns)

    def _refuse_pipeline_in_default_group(self, file: KinetoFile) -> None:
        if self.options.sizes or not is_all_data_parallel(file.info):
            return
        kinds = {each.name for each in file.names if isinstance(each, KernelCollective)}
        if kinds & {"send", "recv"}:
            raise InvalidTrace(
                f"{file.path.name}: ranks of its only group send to each other, as stages of a "
                "pipeline do: give --dp and --pp"
            )

    def _agree(self, name: str, place: ParallelPosition) -> None:
        sizes = dict(place.sizes)
        if self._sizes_told and sizes != self._sizes_told:
            key = next(key for key in sizes if sizes[key] != self._sizes_told.get(key))
            raise InvalidTrace(
                f"{name}: {key} is {sizes[key]} here and {self._sizes_told.get(key)} in "
                f"{self.paths[0].name}: give the files of one run, or the sizes"
            )
        self._sizes_told = sizes

    def _origin_ns(self, file: KinetoFile) -> int:
        origin_ns = file.origin_ns
        if origin_ns is not None:
            return origin_ns
        if len(self.paths) > 1:
            raise InvalidTrace(
                f"{file.path.name}: has no baseTimeNanoseconds: its times cannot be compared with "
                "those of other ranks"
            )
        self._has_clock = False
        return 0


_SAMPLE_COLLECTIVES = {
    "params-all-gather": "_allgather_base",
    "grads-reduce-scatter": "_reduce_scatter_base",
}
_GROUPS = {"pp": "1", "dp": "2"}
_SampleArgs = dict[str, str | int]
_SampleEvent = dict[str, str | float | _SampleArgs]


def sample() -> dict[str, bytes]:
    """One file of each rank."""
    return {f"rank{rank}.json": _sample_file(rank) for rank in range(DP_SIZE * PP_SIZE)}


def _sample_file(rank: int) -> bytes:
    ops = [op for op in sample_ops() if op.rank == rank]
    members = {
        "pp": [stage * DP_SIZE + ops[0].dp_rank for stage in range(PP_SIZE)],
        "dp": [ops[0].stage * DP_SIZE + dp_rank for dp_rank in range(DP_SIZE)],
    }
    groups = [
        {"pg_name": _GROUPS[axis], "pg_desc": f"mesh_{axis}", "pg_size": len(ranks), "ranks": ranks}
        for axis, ranks in members.items()
    ]
    content = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "made"}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": DP_SIZE * PP_SIZE,
            "pg_count": len(groups),
            "pg_config": groups,
        },
        "host_name": f"n{rank}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BEGAN_NS,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
            *(_sample_step(step, [op for op in ops if op.step == step]) for step in STEPS),
            *(_sample_event(op, members["pp"]) for op in ops),
        ],
        "traceName": f"rank{rank}.json",
    }
    return msgspec.json.encode(content)


def _sample_step(step: int, ops: list[SampleOp]) -> _SampleEvent:
    start_ns = min(op.start_ns for op in ops)
    end_ns = max(op.start_ns + op.duration_ns for op in ops)
    name = f"ProfilerStep#{step}"
    return _complete_event("gpu_user_annotation", name, start_ns, end_ns - start_ns, {})


def _sample_event(op: SampleOp, pipeline: list[int]) -> _SampleEvent:
    times = op.start_ns, op.duration_ns
    if op.optype == "optimizer":
        return _complete_event("gpu_user_annotation", "Optimizer.step#AdamW.step", *times, {})
    if op.mb_id >= 0 and op.optype.endswith("compute"):
        return _complete_event("gpu_user_annotation", op.optype, *times, {"External id": op.seq_id})
    args: _SampleArgs = {"Collective name": _SAMPLE_COLLECTIVES.get(op.optype, op.optype[-4:])}
    axis = "dp" if op.optype in _SAMPLE_COLLECTIVES else "pp"
    if axis == "pp":
        peer = pipeline[1 - op.stage]  # its global rank, as PyTorch writes it
        args["Dst Rank" if op.optype.endswith("send") else "Src Rank"] = peer
    args |= {"Process Group Name": _GROUPS[axis], "Process Group Description": f"mesh_{axis}"}
    return _complete_event("kernel", "ncclDevKernel_Generic", *times, args)


def _complete_event(
    category: str, name: str, start_ns: int, duration_ns: int, args: _SampleArgs
) -> _SampleEvent:
    ts, dur = (start_ns - BEGAN_NS) / 1000, duration_ns / 1000
    where = {"pid": 0, "tid": 7 if category != "kernel" else 9}
    return {"ph": "X", "cat": category, "name": name, **where, "ts": ts, "dur": dur, "args": args}
