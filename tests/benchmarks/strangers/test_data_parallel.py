"""Steps of DDP and FSDP against cases that are worked by hand, and the rows that a client sends."""

from typing import Any

import numpy as np
import pytest

from app.trace.ops import OP_CODES
from benchmarks.strangers.command import _of_kind
from benchmarks.strangers.drawn_jobs import draw_job
from benchmarks.strangers.graphs import graph_of
from benchmarks.strangers.recording import Extras, Recorder, record
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Durations, simulate

DDP: dict[str, Any] = {
    "gradients": "ddp",
    "has_clip": False,
    "has_small_reductions": False,
    "has_gathers": False,
}
FSDP: dict[str, Any] = DDP | {"gradients": "fsdp"}
TRANSFER_S = 0.25


def recorded(shape, slow=1.0):
    """The window of one step: forwards of 1 s, backwards of 2 s, collectives of 0.25 s a part.

    The last rank takes `slow` times as long.
    """
    graph = graph_of(shape)
    own = np.zeros((1, graph.num_ops, shape.dp))
    own[:, graph.of(OP_CODES["forward-compute"])] = 1.0
    own[:, graph.of(OP_CODES["backward-compute"])] = 2.0
    own *= graph.weight[:, None]
    own[..., -1] *= slow
    own[:, graph.is_communication] = TRANSFER_S
    times = Durations(own, np.zeros_like(own), np.zeros((1, 1, shape.dp)), is_continuous=True)
    recorder = Recorder(
        is_client=True, names_hosts=False, first_step=0, offset_s=(0.0,), drift=(0.0,)
    )
    rng = np.random.default_rng(0)
    return record(shape, graph, simulate(graph, times), recorder, Extras(), rng).trace


def times(trace, optype, dp_rank=0):
    """(start, end) of each row of a type, by number."""
    rows = np.flatnonzero((trace.optype == OP_CODES[optype]) & (trace.dp_rank == dp_rank))
    rows = rows[np.argsort(trace.seq_id[rows])]
    assert trace.seq_id[rows].tolist() == list(range(rows.size))
    starts, ends = trace.start_s[rows], trace.start_s[rows] + trace.duration_s[rows]
    return [
        pytest.approx(pair, abs=1e-4) for pair in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def test_ddp_buckets_are_posted_by_each_rank_and_reduced_when_the_last_one_has():
    trace = recorded(Shape(2, 1, 1, bucket_shares=(0.5, 1.0), **DDP), slow=2.0)
    assert times(trace, "backward-compute", 0) == [(1, 3)]
    assert times(trace, "backward-compute", 1) == [(2, 6)]
    assert times(trace, "grads-reduce-scatter", 0) == [(2, 4.25), (3, 6.25)]
    assert times(trace, "grads-reduce-scatter", 1) == [(4, 4.25), (6, 6.25)]
    # The stream waits for the last bucket once it has computed.
    assert times(trace, "wait", 0) == [(3, 6.25)]
    assert times(trace, "optimizer", 0) == [(6.25, 6.25)]


def test_ddp_buckets_that_start_in_queue_start_when_the_one_before_is_reduced():
    shape = Shape(2, 1, 1, bucket_shares=(0.5, 1.0), starts_in_queue=True, **DDP)
    trace = recorded(shape, slow=2.0)
    assert times(trace, "grads-reduce-scatter", 0) == [(2, 4.25), (4.25, 6.25)]


def test_a_bucket_that_is_posted_early_is_reduced_after_the_one_before():
    trace = recorded(Shape(2, 1, 1, bucket_shares=(0.5, 0.55, 1.0), **DDP))
    assert times(trace, "grads-reduce-scatter") == [(2, 2.25), (2.1, 2.5), (3, 3.25)]


def test_a_held_backward_stands_still_while_its_bucket_is_waited_for():
    shape = Shape(2, 1, 2, bucket_shares=(0.5, 1.0), is_held=True, **DDP)
    trace = recorded(shape, slow=2.0)
    # Rank 0: F 0-1, B 1-3, F 3-4, half a backward 4-5; rank 1 posts its bucket at 10.
    assert times(trace, "grads-reduce-scatter", 0) == [(5, 10.25), (11.25, 12.5)]
    assert times(trace, "backward-compute", 0) == [(1, 3), (4, 11.25)]
    assert times(trace, "grads-reduce-scatter", 1) == [(10, 10.25), (12.25, 12.5)]


def test_fsdp_records_wholes_that_contain_their_waits():
    shape = Shape(2, 1, 1, unit_weights=(0.5, 0.5), **FSDP)
    trace = recorded(shape)
    # Gathers of both units are posted at once; the second one's is over before it is needed.
    assert times(trace, "params-all-gather") == [(0, 0.25), (0.25, 0.5), (1.25, 1.5)]
    assert times(trace, "forward-compute") == [(0, 1.25)]
    # Backward of unit 1 until 2.25, its scatter; unit 0 until 3.25, and the last scatter's wait.
    assert times(trace, "grads-reduce-scatter") == [(2.25, 2.5), (3.25, 3.5)]
    assert times(trace, "backward-compute") == [(1.25, 3.5)]
    assert times(trace, "wait") == [(0, 0.25), (3.25, 3.5)]
    assert set(trace.mb_id.tolist()) == set(trace.mc.tolist()) == {-1}
    waiting = trace.contains_waits[np.isin(trace.optype, (0, 1))]
    assert set(waiting.tolist()) == {1}


def test_of_two_waits_in_one_place_the_second_begins_where_the_first_has_ended():
    trace = recorded(Shape(2, 1, 1, unit_weights=(0.1, 0.1, 0.8), **FSDP))
    # Backward of unit 2 until 3.15, of unit 1 until 3.35; unit 0 waits for the scatter of unit 2
    # and for its own parameters, both there at 3.4, and the end for the last two scatters.
    assert times(trace, "wait") == [
        (0, 0.25),
        (0.35, 0.5),
        (0.6, 0.75),
        (3.35, 3.4),
        (3.6, 3.65),
        (3.65, 3.9),
    ]


def test_fsdp_waits_inside_of_computations_for_the_slow_rank():
    trace = recorded(Shape(2, 1, 1, unit_weights=(0.5, 0.5), **FSDP), slow=2.0)
    # Rank 1 computes unit 0 until 1.25 and unit 1 until 2.25; its backward's first unit until 4.25.
    assert times(trace, "forward-compute", 1) == [(0, 2.25)]
    assert times(trace, "params-all-gather", 0) == [(0, 0.25), (0.25, 0.5), (1.25, 2.5)]
    # Rank 0 scatters unit 0 only once the scatter of unit 1 is over.
    assert times(trace, "grads-reduce-scatter", 0) == [(2.25, 4.5), (4.5, 6.5)]
    assert times(trace, "backward-compute", 1) == [(2.25, 6.5)]


@pytest.mark.parametrize("kind", ["ddp-slow-rank", "fsdp-communication-bound"])
def test_a_drawn_slow_rank_computes_longer_than_the_others(kind):
    job = draw_job(_of_kind(5, kind, 1))
    ((slow, _),) = job.faults[0].truth.guilty
    assert job.window is not None
    trace = job.window.trace
    of_forward = trace.optype == OP_CODES["forward-compute"]
    means = [
        trace.duration_s[of_forward & (trace.dp_rank == dp_rank)].mean()
        for dp_rank in range(job.shape.dp)
    ]
    assert int(np.argmax(means)) == slow
    assert job.faults[0].cost > 0.05
