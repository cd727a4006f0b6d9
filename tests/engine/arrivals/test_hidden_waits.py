"""Waits inside computations: docs/arrivals.md, by hand."""

import dataclasses

import numpy as np
import pytest

from app.engine.replays import WindowReplay, prepare
from app.engine.report import analyse_replay
from app.trace.ops import OP_CODES
from app.trace.window import Trace, Window
from tests import window_factory
from tests.engine.arrivals import ddp_windows
from tests.engine.clocks.shifted_windows import Clock, recorded
from tests.window_factory import Row, in_row, replicas

FORWARD, BACKWARD = OP_CODES["forward-compute"], OP_CODES["backward-compute"]


def own_s(replay: WindowReplay, code: int, stage: int = 0) -> np.ndarray:
    """[dp, steps], what the first computation of a type took a worker itself."""
    (group,) = replay.groups
    is_asked = (group.template.optype == code) & (group.template.stage == stage)
    row = int(np.flatnonzero(is_asked)[0])
    return np.asarray(group.durations.recorded_s[row].reshape(group.dp_size, -1))


def one_worker(*waits: tuple[float, float]) -> Window:
    """Forward from 0 to 10 s, backward to 20 s, and waits (from, to)."""
    rows = in_row(("forward-compute", 10.0), ("backward-compute", 10.0), ("optimizer", 1.0))
    return window_factory.window([*rows, *(Row("wait", since, to - since) for since, to in waits)])


@pytest.mark.parametrize(
    ("waits", "forward_s", "backward_s"),
    [
        ([(2.0, 4.0)], 8.0, 10.0),
        ([(2.0, 4.0), (3.0, 5.0)], 7.0, 10.0),  # together 3 s
        ([(3.0, 5.0), (2.0, 8.0), (4.0, 6.0)], 4.0, 10.0),  # one inside another
        ([(2.0, 4.0), (6.0, 7.0), (7.0, 8.0)], 6.0, 10.0),
        ([(9.0, 12.0)], 9.0, 8.0),  # a part in each
        ([(0.0, 1.0), (19.0, 25.0)], 9.0, 9.0),
        ([(21.5, 30.0)], 10.0, 10.0),
        ([(5.0, 5.0)], 10.0, 10.0),
    ],
)
def test_waits_are_taken_out_of_the_computations_that_they_lie_in(waits, forward_s, backward_s):
    replay = prepare(one_worker(*waits))
    assert own_s(replay, FORWARD).item() == pytest.approx(forward_s)
    assert own_s(replay, BACKWARD).item() == pytest.approx(backward_s)
    # The optimizer is a computation as well: a wait that ends in it shortens it.
    inside_s = sum(max(0.0, min(to, 21.0) - max(since, 20.0)) for since, to in waits)
    assert replay.simulated_s.item() == pytest.approx(forward_s + backward_s + 1.0 - inside_s)


def test_waits_that_cover_all_computation_are_ignored():
    replay = prepare(one_worker((0.0, 21.0)))
    assert replay.simulated_s.item() == pytest.approx(21.0)
    assert analyse_replay(replay).slowdown == pytest.approx(1.0)


def test_a_wait_belongs_to_its_own_worker_and_step():
    rows = replicas(in_row(("forward-compute", 10.0), ("backward-compute", 10.0)), 2)
    rows = [row.on(step=step) for step in range(3) for row in rows]
    window = window_factory.window([*rows, Row("wait", 1.0, 4.0, dp_rank=1, step=2)], dp_size=2)
    replay = prepare(window)
    np.testing.assert_allclose(own_s(replay, FORWARD), [[10, 10, 10], [10, 10, 6]])
    np.testing.assert_allclose(own_s(replay, BACKWARD), 10)


def test_waits_are_removed_in_steps_with_another_order():
    rows = in_row(("forward-compute", 10.0), ("backward-compute", 10.0))
    swapped = in_row(("backward-compute", 10.0), ("forward-compute", 10.0))
    rows += [row.on(dp_rank=1) for row in swapped]
    rows += [Row("wait", 1.0, 2.0, dp_rank=1), Row("wait", 12.0, 3.0, dp_rank=1)]
    replay = prepare(window_factory.window(rows, dp_size=2))
    np.testing.assert_allclose(own_s(replay, FORWARD), [[10], [7]])
    np.testing.assert_allclose(own_s(replay, BACKWARD), [[10], [8]])


def test_clock_correction_moves_waits_with_their_computations():
    rows = replicas(
        in_row(
            ("forward-compute", 0.3),
            ("backward-compute", 0.4),
            ("grads-reduce-scatter", 0.1),
            ("optimizer", 0.1),
        ),
        2,
    )
    rows = [row.on(step=step) for step in range(4) for row in rows]
    waits = [Row("wait", 0.2, 0.2, dp_rank=1, step=step) for step in range(4)]
    window = window_factory.window([*rows, *waits], dp_size=2)
    clocks = {"host-1-0": Clock(offset_ns=700_000_000, drift_ppm=20.0)}
    replay = prepare(recorded(window, clocks))
    assert replay.clocks.residual_s is not None  # the hosts' clocks are measured
    np.testing.assert_allclose(own_s(replay, FORWARD), [[0.3] * 4, [0.2] * 4], atol=1e-4)
    np.testing.assert_allclose(own_s(replay, BACKWARD), [[0.4] * 4, [0.3] * 4], atol=1e-4)


def test_milestones_count_the_own_time_of_their_computation():
    rows = [
        *in_row(("forward-compute", 10.0), ("backward-compute", 10.0), ("optimizer", 1.0)),
        Row("grads-reduce-scatter", 18.0, 1.0),
        Row("wait", 12.0, 4.0),
    ]
    (group,) = prepare(window_factory.window(replicas(rows, 2), dp_size=2)).groups
    # Asked for after 4 of the 6 s that the backward computes.
    assert group.graph.milestone_share.tolist() == pytest.approx([4.0 / 6.0])
    assert group.durations.recorded_s[group.template.num_ops :] == pytest.approx(4.0)
    assert group.simulated_s.item() == pytest.approx(10.0 + 6.0 + 1.0)


def _but_waits(window: Window) -> Trace:
    return window.trace.select(window.trace.optype != OP_CODES["wait"])


LATE = 1.6
DDP = pytest.mark.parametrize(("num_ranks", "slow"), [(2, 1), (4, 0), (4, 2), (8, 5)])


def slow_rank(num_ranks: int, slow: int, *, held: bool) -> WindowReplay:
    factors = [LATE if rank == slow else 1.0 for rank in range(num_ranks)]
    return prepare(ddp_windows.ddp(factors, held=held, noise=0.005))


@pytest.mark.parametrize("held", [True, False])
@DDP
def test_the_slow_rank_of_ddp_is_the_culprit(num_ranks, slow, held):
    found = slow_rank(num_ranks, slow, held=held).arrivals
    assert found is not None
    assert [found.places[each.place].rank for each in found.culprits] == [slow]


@DDP
def test_backwards_held_up_by_waiting_kernels_lose_the_wait(num_ranks, slow):
    replay = slow_rank(num_ranks, slow, held=True)
    (group,) = replay.groups
    (held_up,) = replay.held_up
    assert (held_up[group.template.optype == BACKWARD] == 1).all()
    took_s = own_s(replay, BACKWARD).mean(axis=1)
    expected_s = np.full(num_ranks, ddp_windows.BACKWARD_S)
    expected_s[slow] *= LATE
    np.testing.assert_allclose(took_s, expected_s, rtol=0.05)
    np.testing.assert_allclose(own_s(replay, FORWARD).mean(axis=1), expected_s / 2, rtol=0.05)


@DDP
def test_backwards_that_keep_computing_lose_only_recorded_waits(num_ranks, slow):
    replay = slow_rank(num_ranks, slow, held=False)
    (group,) = replay.groups
    (held_up,) = replay.held_up
    assert (held_up[group.template.optype == BACKWARD] == -1).all()
    expected_s = np.full(num_ranks, ddp_windows.BACKWARD_S)
    expected_s[slow] *= LATE
    np.testing.assert_allclose(own_s(replay, BACKWARD).mean(axis=1), expected_s, rtol=0.05)


def test_a_backward_that_keeps_computing_is_unchanged_without_wait_spans():
    window = ddp_windows.ddp([1.0, LATE, 1.0, 1.0], held=False)
    replay = prepare(dataclasses.replace(window, trace=_but_waits(window)))
    (group,) = replay.groups
    row = int(np.flatnonzero(group.template.optype == BACKWARD)[0])
    assert group.durations.recorded_s[row].tolist() == group.grid.duration_s[row].tolist()


def test_waits_that_grow_from_bucket_to_bucket_show_that_the_backward_computes_on():
    # 2.5 ms more each time, far below what a bucket's part of the backward takes (25 ms): its work
    # is less by as much as was waited before.
    replay = prepare(ddp_windows.ddp([1.0, 1.1, 1.0, 1.0], held=False, slow_forward=False))
    assert replay.held_up[0][replay.groups[0].template.optype == BACKWARD].tolist() == [-1]
    # Held up, it has the same work to do after every wait.
    replay = prepare(ddp_windows.ddp([1.0, 1.1, 1.0, 1.0], held=True, slow_forward=False))
    assert replay.held_up[0][replay.groups[0].template.optype == BACKWARD].tolist() == [0]


def test_a_backward_that_ends_beside_waiting_buckets_computes_on():
    # Rank 0 has all buckets but the first queued beyond its backward.
    rows = [row for step in range(4) for row in ddp_windows.queued_step([10.0, 20.0], step)]
    replay = prepare(window_factory.window(rows, dp_size=2))
    assert replay.held_up[0][replay.groups[0].template.optype == BACKWARD].tolist() == [-1]


@pytest.mark.parametrize("held", [True, False])
def test_healthy_ddp_has_no_held_up_computation(held):
    replay = prepare(ddp_windows.ddp([1.0] * 4, held=held, noise=0.005))
    assert replay.arrivals is not None
    assert replay.arrivals.culprits == []
    assert not any(of_ops.any() for of_ops in replay.held_up)
    np.testing.assert_allclose(own_s(replay, BACKWARD), ddp_windows.BACKWARD_S, rtol=0.05)


@pytest.mark.parametrize("held", [True, False])
def test_the_slowdown_of_ddp_is_the_same_in_both_modes(held):
    replay = slow_rank(4, 2, held=held)
    report = analyse_replay(replay)
    # All four take 1.6 of what they would without; the mean of all four is 1.15.
    busy_s = ddp_windows.FORWARD_S + ddp_windows.BACKWARD_S
    actual_s, ideal_s = LATE * busy_s, 1.15 * busy_s
    rest_s = ddp_windows.TRANSFER_S + ddp_windows.OPTIMIZER_S
    expected = (actual_s + rest_s) / (ideal_s + rest_s)
    assert report.slowdown == pytest.approx(expected, rel=0.05)
    assert report.discrepancy < 0.05
