import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from app.engine.graph import ALL_DP_RANKS, StepGraph
from app.engine.grid import lay_out
from app.engine.report import analyse
from app.engine.what_if import Durations, Peers, Replayer, replayer, step_times
from app.trace.window import Window
from tests.example_counts import many
from tests.job_strategies import windows
from tests.result_comparison import agree
from tests.results import report_as_json
from tests.window_factory import rows_of, scaled, with_columns

SOME = many(60)


def graph(units: list[list[int]], preds: list[list[int]], *, meets: tuple[int, ...] = ()):
    """A graph whose last operation ends the step; `meets` are units in which dp ranks meet."""
    num_ops = len(preds)
    return StepGraph(
        num_ops=num_ops,
        unit_ptr=np.cumsum([0, *map(len, units)]),
        unit_ops=np.array([op for unit in units for op in unit]),
        meets=np.array([ALL_DP_RANKS * (unit in meets) for unit in range(len(units))], np.int8),
        pred_ptr=np.cumsum([0, *map(len, preds)]),
        preds=np.array([op for ops in preds for op in ops], np.int64),
        is_last=np.arange(num_ops) == num_ops - 1,
        milestone_of=np.empty(0, np.int64),
        milestone_share=np.empty(0),
        milestone_lane=np.empty(0, np.int64),
    )


def times(a_graph: StepGraph, recorded_s: list[list[float]], num_groups: int = 1) -> list[float]:
    """Step times with everything as recorded; `recorded_s` is [ops][lanes]."""
    num_ops, num_lanes = len(recorded_s), len(recorded_s[0])
    durations = Durations(
        np.array(recorded_s), np.full(num_ops, np.nan), np.zeros(num_ops, np.int64)
    )
    peers = Peers(np.arange(num_lanes // num_groups), num_groups)
    keep = np.ones((1, peers.num_peers), np.bool_)
    found: list[float] = step_times(a_graph, durations, keep, peers).tolist()
    return found


def test_a_diamond_waits_for_its_slower_branch():
    #   0 --1s--> 1 (5 s) --> 3 (1 s)
    #    `------> 2 (2 s) --^
    diamond = graph([[0], [1], [2], [3]], [[], [0], [0], [1, 2]])
    assert times(diamond, [[1.0], [5.0], [2.0], [1.0]]) == [7.0]


def test_operations_that_meet_start_together_and_end_separately():
    # 0 (1 s) -> 2, 1 (4 s) -> 3; 2 and 3 meet at 4 s, then take 2 s and 3 s; 4 follows 2.
    pair = graph([[0], [1], [2, 3], [4]], [[], [], [0], [1], [2]])
    assert times(pair, [[1.0], [4.0], [2.0], [3.0], [1.0]]) == [7.0]


def test_dp_ranks_meet_where_they_synchronise_and_nowhere_else():
    chain = [[], [0], [1]]
    recorded_s = [[1.0, 5.0], [2.0, 2.0], [9.0, 1.0]]
    assert times(graph([[0], [1], [2]], chain, meets=(1,)), recorded_s) == [16.0]
    assert times(graph([[0], [1], [2]], chain), recorded_s) == [12.0]


def test_operations_of_different_steps_never_meet():
    # Lanes are dp rank 0's two steps, then dp rank 1's.
    chain = graph([[0], [1]], [[], [0]], meets=(1,))
    assert times(chain, [[1.0, 10.0, 2.0, 4.0], [1.0] * 4], num_groups=2) == [3.0, 11.0]


def test_kept_operations_take_their_recorded_time_and_all_others_the_ideal():
    chain = graph([[0], [1]], [[], [0]])
    durations = Durations(
        np.array([[1.0, 2.0], [10.0, 20.0]]), np.array([100.0, 1000.0]), np.array([0, 1])
    )

    def step_s(*keep: list[bool]) -> float:
        return float(step_times(chain, durations, np.array(keep), Peers(np.arange(2), 1))[0])

    assert step_s([True, True], [True, True]) == 22.0
    assert step_s([False, False], [False, False]) == 1100.0
    assert step_s([True, True], [False, False]) == 1002.0
    assert step_s([False, False], [True, True]) == 120.0
    assert step_s([False, True], [False, True]) == 1100.0  # dp rank 0 is ideal, and slower
    assert step_s([True, False], [True, True]) == 120.0


def a_replayer(a_window: Window) -> Replayer:
    return replayer(lay_out(a_window))


@SOME
@given(windows())
def test_keeping_everything_is_the_simulation_and_keeping_nothing_the_ideal(a_window):
    replay, report = a_replayer(a_window), analyse(a_window)
    everything = replay.keep()
    np.testing.assert_array_equal(replay.step_times(everything), report.simulated_s)
    np.testing.assert_array_equal(replay.step_times(~everything), report.ideal_s)


@SOME
@given(windows(), st.data())
def test_a_longer_operation_never_ends_a_step_sooner(a_window, data):
    replay = a_replayer(a_window)
    op = data.draw(st.integers(0, replay.graph.num_ops - 1))
    lane = data.draw(st.integers(0, replay.grid.start_s.shape[1] - 1))
    longer = replay.durations.recorded_s.copy()
    longer[op, lane] += 1.0
    durations = Durations(longer, replay.durations.ideal_s, replay.durations.op_class)
    slower_s = step_times(replay.graph, durations, replay.keep(), replay.peers)
    now_s = replay.step_times(replay.keep())
    assert (slower_s >= now_s).all()
    others = np.arange(now_s.size) != lane % replay.grid.num_steps
    assert (slower_s[others] == now_s[others]).all()


@SOME
@given(windows())
def test_the_ideal_of_one_replica_is_the_ideal_of_all(a_window):
    replay = a_replayer(a_window)
    nobody = np.zeros(replay.pp_size, np.bool_)
    np.testing.assert_array_equal(replay.one_replica_kept(nobody), replay.ideal_s)


@SOME
@given(windows(), st.data())
def test_one_pass_for_all_dp_ranks_equals_one_simulation_per_worker(a_window, data):
    replay = a_replayer(a_window)
    stage = np.arange(replay.pp_size) == data.draw(st.integers(0, replay.pp_size - 1))
    together_s = replay.one_replica_kept(stage)
    for dp_rank in range(replay.dp_size):
        mine = replay.keep(stages=stage, dp_ranks=np.arange(replay.dp_size) == dp_rank)
        np.testing.assert_array_equal(together_s[dp_rank], replay.step_times(mine))


@SOME
@given(windows())
def test_a_job_on_slower_hardware_has_the_same_slowdowns(a_window):
    # But for clock errors and the tolerances of rule 4, which are absolute.
    assume(a_replayer(a_window).durations.recorded_s.min() >= 0)
    base, slower = (report_as_json(analyse(each)) for each in (a_window, scaled(a_window, 4.0)))
    assert slower["slowdown"] == base["slowdown"]
    assert slower["per_step"] == base["per_step"]
    assert slower["step_time_s"]["simulated"] == [
        4 * time_s for time_s in base["step_time_s"]["simulated"]
    ]


@SOME
@given(windows(), st.sampled_from([-64.0, 1.0, 4096.0]))
def test_figures_do_not_depend_on_step_origins(a_window, shift_s):
    later_s = a_window.trace.start_s + shift_s * (a_window.trace.step == a_window.steps[0])
    shifted = with_columns(a_window, start_s=later_s)
    assert report_as_json(analyse(shifted)) == report_as_json(analyse(a_window))


@SOME
@given(windows(max_steps=1))
def test_a_repeated_step_does_not_change_the_figures(a_window):
    twice = rows_of(a_window, np.tile(np.arange(a_window.trace.num_ops), 2))
    step = twice.trace.step.copy()
    step[a_window.trace.num_ops :] += 1
    both = with_columns(
        Window(twice.job, 1, twice.first_step, (*twice.steps, twice.steps[0] + 1), twice.trace),
        step=step,
    )
    once, again = report_as_json(analyse(a_window)), report_as_json(analyse(both))
    for name in ("slowdown", "dp_rank_slowdown", "stage_slowdown", "worker_slowdown"):
        agree(again[name], once[name], name, relative=1e-9)
