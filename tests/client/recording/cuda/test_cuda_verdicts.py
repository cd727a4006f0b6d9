"""Findings for the replayed profiles: the slow rank, with visible or hidden waits.

`holds` models the profiled GPU, which four ranks shared. Without it, each rank has its own GPU,
where the recorded waits are most of the waiting time.
"""

import numpy as np
import pytest

from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Trace, Window
from tests.client.recording.cuda.profile_replay import replayed
from tests.client.recording.cuda.test_cuda_replay import FIRST_STEP, GPU, host_share
from tests.diagnosis.jobs import diagnosed, findings_of
from tests.shared_traces import needs_shared

pytestmark = needs_shared
SLOW = 1


def window(mode, *, holds):
    """The replayed steps as a window of the server."""
    rows = []
    for rank, recorded in enumerate(
        replayed(mode, GPU, holds=holds, host_share=host_share(mode))[0]
    ):
        while (taken := recorded.buffer.take()) is not None:
            rows += [
                (op[0], rank, OP_CODES[op[1]], op[4], op[2], op[3], op[5], op[6], bool(op[7]))
                for op in taken.ops
                if op[0] >= FIRST_STEP
            ]
    step, rank, optype, seq_id, start_ns, duration_ns, mc, mb_id, is_marked = np.array(rows).T
    sizes = Parallelism(dp_size=2, pp_size=2) if mode == "pipe" else Parallelism(4, 1)
    steps = np.unique(step)
    origin_ns = np.array([start_ns[step == each].min() for each in steps])
    trace = Trace(
        step=step,
        dp_rank=rank % sizes.dp_size,
        stage=rank // sizes.dp_size,
        rank=rank,
        optype=optype,
        seq_id=seq_id,
        mc=mc,
        mb_id=mb_id,
        start_s=(start_ns - origin_ns[np.searchsorted(steps, step)]) / 1e9,
        duration_s=duration_ns / 1e9,
        contains_waits=np.where(is_marked, 1, -1),
    )
    numbers = tuple(steps.tolist())
    return Window(
        job=Job.of("replayed", sizes),
        epoch=1,
        first_step=numbers[0],
        steps=numbers,
        trace=trace,
        state="complete",
        origin_ns=tuple(origin_ns.tolist()),
    )


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("mode", ["ddp", "fsdp2", "pipe"])
def test_slow_rank_is_the_only_finding(mode, holds):
    [finding] = findings_of(diagnosed(window(mode, holds=holds)))
    assert finding.cause == "slow-worker"
    assert [culprit.rank for culprit in finding.culprits] == [SLOW]


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_slowdown_with_visible_waits_is_the_slow_rank_cost(mode):
    result = analyse_replay(prepare(window(mode, holds=False)))
    # All as long as the mean: (1.8 against 1 + 0.8 / 4) x the share that is computed, as with DDP.
    assert result.slowdown == pytest.approx(1.47, abs=0.03)
