from dataclasses import fields

import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.costs import OperationCosts
from app.synth.faults.slow_compute import SlowStage, SlowWorker
from app.synth.job import SimulatedJob
from app.synth.schedules import ComputeKind, Schedule, StageWork
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES, OP_NAMES


def columns(trace):
    named = (getattr(trace, field.name) for field in fields(trace))
    return [column for column in named if column is not None]


def mean_compute_s(trace, name):
    """[stages, dp ranks]"""
    of_type = trace.select(trace.optype == OP_CODES[name])
    total = np.zeros((of_type.stage.max() + 1, of_type.dp_rank.max() + 1))
    count = np.zeros_like(total)
    np.add.at(total, (of_type.stage, of_type.dp_rank), of_type.duration_s)
    np.add.at(count, (of_type.stage, of_type.dp_rank), 1)
    return total / count


def types_of(trace, stage):
    return {OP_NAMES[code] for code in np.unique(trace.optype[trace.stage == stage])}


def ends(trace, name):
    of_type = trace.select(trace.optype == OP_CODES[name])
    return of_type, of_type.start_s + of_type.duration_s


def test_the_same_seed_gives_the_same_operations_in_any_order_of_steps():
    job = SimulatedJob(Parallelism(2, 2), 3, seed=5)
    twice = job.make([3, 4]), job.make([4, 3])
    for a, b in zip(columns(twice[0]), columns(twice[1]), strict=True):
        np.testing.assert_array_equal(a[: a.size // 2], b[b.size // 2 :])


def test_uneven_stages_cost_what_their_factors_say():
    costs = OperationCosts(stage_factors=(1.0, 2.0))
    trace = SimulatedJob(Parallelism(2, 2), 8, costs=costs).make(range(4))
    ratio = mean_compute_s(trace, "forward-compute") / 0.02
    np.testing.assert_allclose(ratio[:, 1], [1, 2], rtol=0.02)


def test_a_collective_ends_on_all_dp_ranks_at_once():
    trace = SimulatedJob(Parallelism(4, 2), 2).make([0])
    for name in ("params-all-gather", "grads-reduce-scatter"):
        ops, end_s = ends(trace, name)
        for stage in range(2):
            assert np.ptp(end_s[ops.stage == stage]) < 1e-12
    assert np.ptp(ends(trace, "optimizer-clip-main-grad")[1]) < 1e-12


def test_seq_ids_count_each_workers_operations_of_a_type_by_their_start():
    trace = SimulatedJob(Parallelism(2, 3), 5).make([0])
    workers = np.stack([trace.optype, trace.dp_rank, trace.stage])
    for worker in np.unique(workers, axis=1).T:
        mine = (workers == worker[:, None]).all(axis=0)
        seq_id = trace.seq_id[mine][np.argsort(trace.start_s[mine], kind="stable")]
        np.testing.assert_array_equal(seq_id, np.arange(seq_id.size))


def test_without_a_pipeline_nothing_is_sent():
    assert types_of(SimulatedJob(Parallelism(2, 1), 2).make([0]), 0) == {
        "params-all-gather",
        "forward-compute",
        "backward-compute",
        "gc",
        "layernorm-grads-all-reduce",
        "grads-reduce-scatter",
        "optimizer-clip-main-grad",
        "optimizer",
    }


def test_only_the_first_and_last_stage_share_embeddings():
    trace = SimulatedJob(Parallelism(2, 3), 2).make([0])
    shares = ["embedding-grads-all-reduce" in types_of(trace, stage) for stage in range(3)]
    assert shares == [True, False, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SimulatedJob(p, 0), "at least 1"),
        (lambda p: SimulatedJob(p, 2, seed=-1), "0 or more"),
        (lambda p: SimulatedJob(Parallelism(2, 2, vpp_size=2), 2), "vpp_size"),
        (lambda p: SimulatedJob(p, 2).make([]), "no steps"),
        (lambda p: SimulatedJob(p, 2, faults=(SlowWorker(2, 0, 1.5),)).make([0]), "dp rank 2"),
        (lambda p: SimulatedJob(p, 2, faults=(SlowStage(9, 1.5),)).make([0]), "stage 9"),
        (lambda p: SimulatedJob(p, 2, faults=(SlowStage(0, 0.0),)).make([0]), "above 0"),
        (
            lambda p: SimulatedJob(p, 2, costs=OperationCosts(stage_factors=(1.0,))).make([0]),
            "stage factors",
        ),
        (lambda p: OperationCosts(forward_s=-1.0), "forward_s"),
        (lambda p: OperationCosts(stage_factors=(0.0,)), "above 0"),
    ],
)
def test_jobs_that_cannot_be_are_refused(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make(Parallelism(2, 2))


class EveryStageWaits(Schedule):
    name = "impossible"

    def order(self, stage, sizes, num_microbatches):
        works = [StageWork(ComputeKind.FORWARD, 0), StageWork(ComputeKind.BACKWARD, 0)]
        return works if stage == sizes.pp_size - 1 else works[::-1]


def test_a_schedule_in_which_all_stages_wait_is_refused():
    with pytest.raises(InvalidRequest, match="waits for another"):
        SimulatedJob(Parallelism(1, 3), 1, schedule=EveryStageWaits()).make([0])
