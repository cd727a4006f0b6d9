"""The chain of operations that decided how long a step took."""

import numpy as np
import pytest
from hypothesis import given

from app.engine.replays import prepare
from app.engine.timeline.critical_path import critical_path
from app.engine.timeline.step_run import RUN_KINDS
from app.errors import InvalidRequest
from app.trace.ops import Axis, OpKind, OpSpec, OpTypes
from tests.example_counts import many
from tests.job_strategies import windows
from tests.window_factory import Row, in_row, window


def chain(path):
    return [(link.optype, link.dp_rank, link.own_s, link.gap_s) for link in path.links]


def of(recorded, kind="recorded", step=0):
    return critical_path(prepare(recorded), step, kind)


def two_replicas():
    """Replica 1 computes for 3 s, replica 0 for 1 s; then they meet, and an optimizer ends it."""
    rows = []
    for dp_rank, compute_s in ((0, 1.0), (1, 3.0)):
        ops = in_row(("forward-compute", compute_s))
        ops += [Row("grads-reduce-scatter", compute_s, 3.5 - compute_s)]
        ops += [Row("optimizer", 3.5, 1.0 if dp_rank == 0 else 0.5)]
        rows += [row.on(dp_rank=dp_rank) for row in ops]
    return window(rows, dp_size=2)


def test_the_chain_goes_through_the_replica_that_arrived_last():
    assert chain(of(two_replicas())) == [
        ("forward-compute", 1, 3.0, 0.0),
        ("grads-reduce-scatter", 1, 0.0, 0.0),
        ("grads-reduce-scatter", 0, 0.5, 0.0),
        ("optimizer", 0, 1.0, 0.0),
    ]


def test_shares_are_of_types_and_of_workers():
    path = of(two_replicas())
    assert path.length_s == 4.5
    assert path.group_shares == {
        "forward-compute": 3.0 / 4.5,
        "optimizer": 1.0 / 4.5,
        "grads-reduce-scatter": 0.5 / 4.5,
    }
    assert path.worker_shares == {(1, 0, 1): 3.0 / 4.5, (0, 0, 0): 1.5 / 4.5}
    assert path.waiting_share == 0.0


def test_a_late_launch_is_waiting_only_in_the_recorded_run():
    rows = [
        *in_row(("forward-compute", 1.0)),
        Row("backward-compute", 1.5, 1.0),
        Row("optimizer", 2.5, 1.5),
    ]
    recorded, simulated = (of(window(rows), kind) for kind in ("recorded", "simulated"))
    assert [link.gap_s for link in recorded.links] == [0.0, 0.5, 0.0]
    assert (recorded.length_s, recorded.waiting_share) == (4.0, 0.125)
    assert [link.gap_s for link in simulated.links] == [0.0, 0.0, 0.0]
    assert simulated.length_s == 3.5


def test_a_pair_of_sends_and_receives_leads_to_the_stage_that_was_late():
    rows = [
        Row("forward-compute", 0.0, 2.0),
        Row("forward-send", 2.0, 0.25),
        Row("optimizer", 2.25, 0.5),
        Row("forward-recv", 0.0, 2.25, stage=1),
        Row("forward-compute", 2.25, 1.0, stage=1),
        Row("optimizer", 3.25, 0.5, stage=1),
    ]
    path = of(window(rows, pp_size=2), "simulated")
    assert [(link.optype, link.stage, link.own_s) for link in path.links] == [
        ("forward-compute", 0, 2.0),
        ("forward-send", 0, 0.0),
        ("forward-recv", 1, 0.25),
        ("forward-compute", 1, 1.0),
        ("optimizer", 1, 0.5),
    ]
    assert path.group_shares["forward-pp-comm"] == 0.25 / 3.75


def test_an_operation_launched_inside_another_waits_for_a_share_of_it():
    rows = [
        Row("forward-compute", 0.0, 1.0),
        Row("backward-compute", 1.0, 2.0),
        Row("grads-reduce-scatter", 2.0, 5.0),
        Row("optimizer", 7.0, 1.0),
    ]
    both = [row.on(dp_rank=dp_rank) for dp_rank in range(2) for row in rows]
    path = of(window(both, dp_size=2), "simulated")
    assert [(link.optype, link.own_s) for link in path.links] == [
        ("forward-compute", 1.0),
        ("backward-compute", 1.0),
        ("grads-reduce-scatter", 5.0),
        ("optimizer", 1.0),
    ]


def test_computation_before_a_posted_receive_is_no_waiting():
    """The model lets recv 1 be posted after compute 0; the worker went backward in between."""
    rows = [
        Row("forward-compute", 0.0, 1.0),
        Row("forward-send", 1.0, 1.0),
        Row("forward-compute", 1.0, 1.0),
        Row("forward-send", 2.0, 4.0),
        Row("optimizer", 6.0, 0.5),
        Row("forward-recv", 0.5, 1.5, stage=1),
        Row("forward-compute", 2.0, 1.0, stage=1),
        Row("backward-compute", 3.0, 2.0, stage=1),
        Row("forward-recv", 5.0, 1.0, stage=1),
        Row("forward-compute", 6.0, 1.0, stage=1),
        Row("optimizer", 7.0, 0.5, stage=1),
    ]
    path = of(window(rows, pp_size=2))
    assert ("backward-compute", 0, 2.0, 0.0) in chain(path)
    assert path.waiting_share == 0.0


def test_disagreeing_clocks_leave_negative_parts_but_the_same_sum():
    rows = [
        Row("forward-compute", 0.0, 2.0),
        Row("forward-send", 2.0, 0.25),
        Row("optimizer", 2.25, 0.25),
        Row("forward-recv", 0.0, 1.0, stage=1),  # this clock is a second late
        Row("forward-compute", 1.0, 2.0, stage=1),
        Row("optimizer", 3.0, 0.5, stage=1),
    ]
    path = of(window(rows, pp_size=2))
    assert [link.own_s for link in path.links] == [2.0, 0.0, -1.0, 2.0, 0.5]
    assert sum(link.own_s + link.gap_s for link in path.links) == path.length_s == 3.5


def test_an_expert_parallel_block_waits_for_its_own_members():
    own = OpSpec("all-to-all", OpKind.COLLECTIVE, Axis.EP, stream="experts")
    rows = []
    for dp_rank, compute_s in enumerate((1.0, 2.0, 1.5, 2.5)):
        met_s = 2.0 if dp_rank < 2 else 2.5
        end_s = met_s + (3.0 if dp_rank == 0 else 0.5)
        ops = [
            Row("forward-compute", 0.0, compute_s),
            Row("all-to-all", compute_s, end_s - compute_s),
            Row("optimizer", end_s, 1.0),
        ]
        rows += [row.on(dp_rank=dp_rank) for row in ops]
    path = of(window(rows, dp_size=4, ep_size=2, op_types=OpTypes((own,))), "simulated")
    assert chain(path) == [
        ("forward-compute", 1, 2.0, 0.0),
        ("all-to-all", 1, 0.0, 0.0),
        ("all-to-all", 0, 3.0, 0.0),
        ("optimizer", 0, 1.0, 0.0),
    ]


def test_an_unknown_step_is_refused():
    with pytest.raises(InvalidRequest, match="step 4"):
        of(two_replicas(), step=4)


@many(150)
@given(windows())
def test_own_times_and_gaps_sum_to_the_step_for_any_recording(recorded):
    replay = prepare(recorded)
    for step in replay.steps:
        for kind in RUN_KINDS:
            path = critical_path(replay, step, kind)
            parts_s = sum(link.own_s + link.gap_s for link in path.links)
            assert parts_s == pytest.approx(path.length_s, abs=1e-9)
            assert sum(path.worker_shares.values()) == pytest.approx(1)
            assert sum(path.group_shares.values()) + path.waiting_share == pytest.approx(1)


@many(150)
@given(windows())
def test_replayed_chains_have_no_gaps_and_the_length_of_the_step(recorded):
    replay = prepare(recorded)
    lengths_s = {"simulated": replay.simulated_s, "ideal": replay.ideal_s}
    for at, step in enumerate(replay.steps):
        for kind in ("simulated", "ideal"):
            path = critical_path(replay, step, kind)
            np.testing.assert_allclose([link.gap_s for link in path.links], 0.0, atol=1e-9)
            assert path.length_s == pytest.approx(lengths_s[kind][at], rel=1e-12)
