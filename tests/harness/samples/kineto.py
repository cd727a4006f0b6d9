"""The tiny job as torch.profiler would have traced it."""

import msgspec

from tests.harness.samples.job import BEGAN_NS, DP_SIZE, PP_SIZE, STEPS, SampleOp, sample_ops

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
