"""The tiny job as ndtimeline would have recorded it."""

import msgspec

from tests.harness.samples.job import sample_ops


def sample() -> dict[str, bytes]:
    """The tiny job as one record a line."""
    ops = sample_ops()
    keys = dict.fromkeys((op.rank, op.step, op.optype) for op in ops)
    records = []
    for rank, step, optype in keys:
        same = [op for op in ops if (op.rank, op.step, op.optype) == (rank, step, optype)]
        records.append(
            {
                "ts": same[0].start_ns // 10**9,
                "rank": rank,
                "metric": optype,
                "iteration": 0,
                "step": step,
                "value": sum(op.duration_ns for op in same) * 1e-9 / len(same),
                "start_ts": [op.start_ns * 1e-9 for op in same],
                "duration": [op.duration_ns * 1e-9 for op in same],
                "model_chunk": 0,
                "stage": same[0].stage,
                "dp_rank": same[0].dp_rank,
                "tp_rank": 0,
                "ip": f"10.0.0.{rank}",
                "role": "trainer",
                "trial": "sample",
                "run_id": 3,
            }
        )
    return {"ndtimeline.jsonl": b"".join(msgspec.json.encode(each) + b"\n" for each in records)}
