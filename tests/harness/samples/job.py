"""The tiny job in every importer's sample: two stages, two replicas, two steps."""

from dataclasses import dataclass

DP_SIZE = 2
PP_SIZE = 2
STEPS = (7, 8)
BEGAN_NS = 1_700_000_000_000_000_000
_STEP_NS = 100_000_000

# Of the first stage and of the last, in milliseconds: op type, start, end, micro-batch.
_FIRST = (
    ("params-all-gather", 0, 2, -1),
    ("forward-compute", 2, 12, 0),
    ("forward-send", 12, 14, 0),
    ("forward-compute", 12, 22, 1),
    ("forward-send", 22, 24, 1),
    ("backward-recv", 22, 46, 0),
    ("backward-compute", 46, 66, 0),
    ("backward-recv", 66, 78, 1),
    ("backward-compute", 78, 90, 1),
    ("grads-reduce-scatter", 90, 92, -1),
    ("optimizer", 92, 95, -1),
)
_LAST = (
    ("params-all-gather", 0, 2, -1),
    ("forward-recv", 2, 14, 0),
    ("forward-compute", 14, 24, 0),
    ("backward-compute", 24, 44, 0),
    ("backward-send", 44, 46, 0),
    ("forward-recv", 44, 47, 1),
    ("forward-compute", 47, 57, 1),
    ("backward-compute", 57, 76, 1),
    ("backward-send", 76, 78, 1),
    ("grads-reduce-scatter", 78, 92, -1),
    ("optimizer", 92, 95, -1),
)


@dataclass(frozen=True, slots=True)
class SampleOp:
    """One operation of the tiny job."""

    rank: int
    dp_rank: int
    stage: int
    step: int
    optype: str
    start_ns: int
    duration_ns: int
    seq_id: int
    mb_id: int


def sample_ops() -> list[SampleOp]:
    """Every operation, rank by rank in Megatron's order (dp, then pp)."""
    return [
        each
        for stage, plan in enumerate((_FIRST, _LAST))
        for dp_rank in range(DP_SIZE)
        for step in STEPS
        for each in _ops(stage * DP_SIZE + dp_rank, dp_rank, stage, step, plan)
    ]


def _ops(
    rank: int, dp_rank: int, stage: int, step: int, plan: tuple[tuple[str, int, int, int], ...]
) -> list[SampleOp]:
    found: list[SampleOp] = []
    for optype, start_ms, end_ms, mb_id in plan:
        seq_id = sum(each.optype == optype for each in found)
        start_ns = BEGAN_NS + step * _STEP_NS + start_ms * 1_000_000
        duration_ns = (end_ms - start_ms) * 1_000_000
        found.append(
            SampleOp(rank, dp_rank, stage, step, optype, start_ns, duration_ns, seq_id, mb_id)
        )
    return found
