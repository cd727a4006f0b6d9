"""Costs worked out by hand: two replicas of one stage, each step one forward and one backward."""

from dataclasses import replace

import numpy as np
import pytest

from app.diagnosis.detector import Suspicion
from app.diagnosis.repair import Repaired, ShortenedComputations, without_factor
from app.diagnosis.suspicions import drop_explained, suspicion_costs
from tests.diagnosis.jobs import case_of
from tests.window_factory import in_row, replicas, window


def a_case(late_s=0.0, slow_s=0.0):
    """Forward 2 s, backward 4 s; dp rank 1 has its forward late, or longer, by so much."""
    rows = in_row(("forward-compute", 2), ("backward-compute", 4), ("optimizer", 1))
    both = replicas(rows, 2)
    moved = [
        row.on(
            start_s=row.start_s + late_s + slow_s * (row.optype != "forward-compute"),
            duration_s=row.duration_s + slow_s * (row.optype == "forward-compute"),
        )
        if row.dp_rank == 1
        else row
        for row in both
    ]
    return case_of(window(moved, dp_size=2))


def suspicion(repair=None, delays=None):
    return Suspicion("slow-worker", 1.0, 1.0, (), "", repair=repair, delays=delays)


def rows_of(group, name):
    return np.flatnonzero([group.template.name(op) == name for op in range(group.template.num_ops)])


def forward_takes(*seconds):
    def repair(group):
        return Repaired(rows_of(group, "forward-compute"), np.array([seconds], np.float64))

    return repair


def test_cost_of_a_repair_is_the_shortening_of_the_step():
    # Replica 1 takes 3 + 2 + 4 + 1 = 10 s, replica 0 7 s; repaired 7 s.
    found = suspicion_costs(a_case(slow_s=3.0), [suspicion(repair=forward_takes(2, 2))])
    np.testing.assert_allclose(found.blamed_s, [10.0])
    assert found.of(0) == pytest.approx(0.3)


def test_a_repair_off_the_critical_path_has_no_cost():
    # 10 s become 8: 2 of the 3 s.
    found = suspicion_costs(a_case(slow_s=3.0), [suspicion(repair=forward_takes(2, 3))])
    assert found.of(0) == pytest.approx(0.2)


def test_delays_are_added_and_left_out_of_the_repaired_time():
    # A replay leaves 3 s of delay out: 7 s; put back 10 s.
    case = a_case(late_s=3.0)
    assert case.replay.simulated_s.tolist() == [7.0]
    found = suspicion_costs(case, [suspicion(delays=forward_takes(0, 3))])
    np.testing.assert_allclose(found.blamed_s, [10.0])
    assert found.of(0) == pytest.approx(0.3)


def test_delays_of_another_cause_stay():
    # Both on replica 1: 3 s late and, as one claims, 1 s too long: 10 s, without that 9 s.
    case = a_case(late_s=3.0)
    late, slow = suspicion(delays=forward_takes(0, 3)), suspicion(repair=forward_takes(2, 1))
    found = suspicion_costs(case, [late, slow])
    np.testing.assert_allclose(found.blamed_s, [10.0])
    assert found.of(0) == pytest.approx(0.3)
    assert found.of(1) == pytest.approx(0.1)


def test_a_slow_end_of_a_step_is_hidden_while_the_others_begin_the_next_one():
    # A step alone takes 4 + 3 s, the last 3 s on replica 1; every 5 s another one begins.
    rows = [
        row.on(step=step, dp_rank=dp_rank, duration_s=row.duration_s + slow_s * dp_rank)
        for step in range(6)
        for dp_rank in (0, 1)
        for row, slow_s in zip(
            in_row(("forward-compute", 1), ("backward-compute", 2), ("optimizer", 1)),
            (0.0, 0.0, 3.0),
            strict=True,
        )
    ]
    periods = replace(window(rows, dp_size=2), origin_ns=tuple(5 * 10**9 * k for k in range(6)))
    case = case_of(periods)
    assert case.replay.simulated_s == pytest.approx([7.0] * 6)
    assert case.report.recorded_s[1:] == pytest.approx([5.0] * 5)

    def optimizer_takes_1_s(group):
        row = rows_of(group, "optimizer")
        return Repaired(row, np.ones((1, 2 * len(group.steps))))

    slow = suspicion(repair=optimizer_takes_1_s)
    assert suspicion_costs(case, [slow]).of(0) == pytest.approx(3 / 7)
    found = suspicion_costs(case, [replace(slow, is_at_step_end=True)])
    assert found.of(0) == pytest.approx(1 / 5)


def test_a_suspicion_without_repair_has_no_replayed_cost():
    assert suspicion_costs(a_case(), [suspicion()]).of(0) is None


def test_removing_a_factor_keeps_the_noise():
    got = without_factor(
        np.array([[3.0, 1.0, 2.2]]), np.array([2.0, 1.0, 2.0]), np.array([2.0, 1.0, 2.0])
    )
    np.testing.assert_allclose(got, [[1.5, 1.0, 1.1]])


def test_removing_a_factor_keeps_a_pause():
    # 1 s, slowed to 2 s, and a pause of 10 s: 12 s become 11.
    got = without_factor(np.array([[12.0]]), np.array([2.0]), np.array([2.0]))
    np.testing.assert_allclose(got, [[11.0]])


def test_only_stages_with_a_factor_are_repaired():
    case = a_case()
    (group,) = case.replay.groups
    ones, factor = np.ones((1, 2, 1)), np.ones((1, 2, 1))
    factor[0, 1, 0] = 2.0
    assert ShortenedComputations(case, ones, ones)(group).rows.size == 0
    repaired = ShortenedComputations(case, ones, factor)(group)
    assert repaired.rows.tolist() == rows_of(group, "backward-compute").tolist()
    np.testing.assert_allclose(repaired.duration_s, [[4.0, 2.0]])


@pytest.mark.parametrize(("factor", "is_explained"), [(1.1, True), (1.8, False)])
def test_a_small_slowdown_of_workers_with_busy_cpus_is_explained_by_these(factor, is_explained):
    # Of 2 and 4 s, 1 s too long now and then; the small slowdown is of all 12 computations.
    case = a_case(slow_s=3.0)
    whole = np.full((1, 2, 1), 1.0)
    whole[0, 1] = factor
    evidence = {"workers": [[1, 0]]}
    busy = replace(suspicion(repair=forward_takes(2, 2)), cause="cpu-contention", evidence=evidence)
    slow = replace(suspicion(repair=ShortenedComputations(case, whole, whole)), evidence=evidence)
    elsewhere = replace(slow, evidence={"workers": [[0, 0]]})
    left, explained = drop_explained(case, [slow, busy])
    assert ("slow-worker" in {each.cause for each in explained}) is is_explained
    assert ("slow-worker" in {each.cause for each in left}) is not is_explained
    assert "slow-worker" in {each.cause for each in drop_explained(case, [elsewhere, busy])[0]}
