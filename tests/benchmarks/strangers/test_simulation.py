"""The event simulation against cases that are worked by hand."""

import numpy as np

from app.trace.ops import OP_CODES
from benchmarks.strangers.graph import build_graph
from benchmarks.strangers.shape import Shape
from benchmarks.strangers.simulation import Durations, simulate

FORWARD_S, BACKWARD_S, TRANSFER_S = 1.0, 2.0, 0.25


def durations(graph, dp, steps=1, *, is_continuous=False):
    """Forwards of 1 s, backwards of 2 s, transfers of 0.25 s; everything else takes no time."""
    own = np.zeros((steps, graph.num_ops, dp))
    own[:, graph.of(OP_CODES["forward-compute"])] = FORWARD_S
    own[:, graph.of(OP_CODES["backward-compute"])] = BACKWARD_S
    for name in ("forward-send", "forward-recv", "backward-send", "backward-recv"):
        own[:, graph.of(OP_CODES[name])] = TRANSFER_S
    stages = int(graph.stage.max()) + 1
    return Durations(own, np.zeros_like(own), np.zeros((steps, stages, dp)), is_continuous)


def times(graph, simulated, optype, stage, dp_rank=0, step=0):
    """(start, end) of each operation of a type on a stage, in order."""
    ops = np.flatnonzero(graph.of(OP_CODES[optype]) & (graph.stage == stage))
    starts, ends = simulated.start_s[step, ops, dp_rank], simulated.end_s[step, ops, dp_rank]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def test_1f1b_of_two_stages_and_two_microbatches_as_worked_by_hand():
    shape = Shape(1, 2, 2, gradients="none", has_clip=False, has_small_reductions=False)
    graph = build_graph(shape)
    simulated = simulate(graph, durations(graph, 1))
    # Stage 0: F0 F1 B0 B1; stage 1: F0 B0 F1 B1.
    assert times(graph, simulated, "forward-compute", 0) == [(0, 1), (1, 2)]
    assert times(graph, simulated, "forward-send", 0) == [(1, 1.25), (2, 2.5)]
    assert times(graph, simulated, "forward-recv", 1) == [(0, 1.25), (2.25, 2.5)]
    assert times(graph, simulated, "forward-compute", 1) == [(1.25, 2.25), (4.25, 5.25)]
    assert times(graph, simulated, "backward-compute", 1) == [(2.25, 4.25), (5.25, 7.25)]
    assert times(graph, simulated, "backward-send", 1) == [(4.25, 4.5), (7.25, 7.5)]
    # The first backward's receive is posted after the second-last computation before it, F0.
    assert times(graph, simulated, "backward-recv", 0) == [(1, 4.5), (6.5, 7.5)]
    assert times(graph, simulated, "backward-compute", 0) == [(4.5, 6.5), (7.5, 9.5)]
    assert times(graph, simulated, "optimizer", 0) == [(9.5, 9.5)]
    assert simulated.step_s == 9.5


def test_only_the_own_stage_waits_in_a_dp_collective_and_all_in_the_clip():
    graph = build_graph(Shape(2, 2, 1, has_small_reductions=False))
    times_s = durations(graph, 2)
    late = graph.of(OP_CODES["backward-compute"]) & (graph.stage == 0)
    times_s.own[:, late, 1] = 4.0
    simulated = simulate(graph, times_s)
    # Stage 1 ends its backward at 4.25 and gets no gradients; stage 0 begins its own at 4.5.
    assert times(graph, simulated, "grads-reduce-scatter", 1, 0) == [(4.25, 4.25)]
    assert times(graph, simulated, "grads-reduce-scatter", 0, 0) == [(6.5, 8.5)]
    for stage in (0, 1):
        assert times(graph, simulated, "optimizer-clip-main-grad", stage)[0][1] == 8.5


def test_steps_follow_each_other_without_a_barrier():
    shape = Shape(1, 2, 2, gradients="none", has_clip=False, has_small_reductions=False)
    graph = build_graph(shape)
    simulated = simulate(graph, durations(graph, 1, 2, is_continuous=True))
    # Stage 1 is done at 7.5 and posts its receive then; stage 0 begins its step at 9.5.
    assert times(graph, simulated, "forward-recv", 1, step=1)[0] == (7.5, 10.75)
    assert times(graph, simulated, "forward-compute", 0, step=1)[0] == (9.5, 10.5)
