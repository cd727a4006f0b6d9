import numpy as np
import pytest

from app.engine import metrics
from app.engine.report import analyse
from app.result.figures import gpu_time_wasted, loss_shares
from tests.results import report_as_json
from tests.window_factory import Row, in_row, window

IDEAL_S = np.array([9.0, 11.0])


def test_slowdown_uses_the_mean_step():
    assert metrics.slowdown(np.array([2.0, 4.0]), IDEAL_S / 5) == 1.5


def test_a_job_at_half_its_speed_wastes_half_its_gpu_time():
    assert gpu_time_wasted(2.0) == 0.5
    assert gpu_time_wasted(1.0) == 0.0


def test_recovered_share_is_the_share_of_the_loss_that_a_repair_recovers():
    actual_s, repaired_s = np.array([13.0, 15.0]), np.array([12.0, 14.0])
    assert metrics.recovered_share(actual_s, repaired_s, IDEAL_S) == 0.25


def test_a_harmful_repair_has_a_negative_share():
    assert metrics.recovered_share(np.array([12.0]), np.array([13.0]), IDEAL_S) == -0.5


def test_a_job_faster_than_its_ideal_has_shares():
    # Only T = T_ideal leaves nothing to divide by (docs/glossary.md, M_W).
    assert metrics.recovered_share(np.array([8.0]), np.array([9.0]), IDEAL_S) == 0.5


@pytest.mark.parametrize("rounding_s", [0.0, 1e-12, -1e-12])
def test_without_a_loss_there_is_no_recovered_share(rounding_s):
    actual_s = np.array([10.0 + rounding_s])
    assert metrics.recovered_share(actual_s, np.array([9.0]), IDEAL_S) is None


def test_discrepancy_is_a_share_of_the_recorded_time():
    assert metrics.discrepancy(np.array([9.0, 9.0]), np.array([10.0, 10.0])) == pytest.approx(0.1)
    assert metrics.discrepancy(np.array([11.0]), np.array([10.0])) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("num_workers", "num_slowest"), [(1, 1), (33, 1), (34, 2), (66, 2), (67, 3), (100, 3), (101, 4)]
)
def test_slowest_workers_are_3_percent_rounded_up(num_workers, num_slowest):
    slowdown = np.linspace(1.0, 2.0, num_workers)[:, None]
    chosen = metrics.slowest_workers(slowdown, np.arange(num_workers)[:, None])
    assert np.flatnonzero(chosen).tolist() == list(range(num_workers - num_slowest, num_workers))


def test_equally_slow_workers_are_chosen_by_lowest_rank():
    slowdown = np.array([[1.0, 1.5], [1.5, 1.0]])
    rank = np.array([[0, 9], [3, 4]])
    assert metrics.slowest_workers(slowdown, rank).tolist() == [[False, False], [True, False]]


def test_an_op_types_share_is_its_excess_over_the_sum_of_all_excesses():
    shares = loss_shares({"forward-compute": 1.3, "backward-compute": 1.1, "optimizer": 0.9})
    assert shares == {
        "forward-compute": pytest.approx(0.75),
        "backward-compute": pytest.approx(0.25),
        "optimizer": 0.0,
    }


def test_an_op_type_that_was_not_measured_has_no_share():
    assert loss_shares({"gc": None, "optimizer": 1.2}) == {"gc": None, "optimizer": 1.0}


def slow_worker_job() -> list[Row]:
    """Two replicas of two stages without any p2p; dp rank 1's last stage computes 5 s, not 1 s."""
    rows = []
    for dp_rank in range(2):
        for stage in range(2):
            compute_s = 5.0 if (dp_rank, stage) == (1, 1) else 1.0
            here = in_row(
                ("forward-compute", compute_s),
                ("optimizer-clip-main-grad", 6.0 - compute_s),
                ("optimizer", 1.0),
                stage=stage,
            )
            rows += [row.on(dp_rank=dp_rank) for row in here]
    return rows


def test_figures_of_one_slow_worker_by_hand():
    # All clips end at 6 s, the last of them started at 5 s: each transfers for 1 s. Computes
    # take 2 s in the mean, so T_ideal = 2 + 1 + 1 and T = 5 + 1 + 1.
    result = report_as_json(analyse(window(slow_worker_job(), dp_size=2, pp_size=2)))
    steps_s = {"recorded": [7.0], "between": [0.0], "simulated": [7.0], "ideal": [4.0]}
    assert result["step_time_s"] == steps_s
    assert result["slowdown"] == 7 / 4
    assert result["gpu_time_wasted"] == pytest.approx(3 / 7)
    assert result["optype_slowdown"] == {
        "forward-compute": 7 / 4,
        "optimizer-clip-main-grad": 1.0,
        "optimizer": 1.0,
    }
    assert result["dp_rank_slowdown"] == [1.0, 7 / 4]
    assert result["stage_slowdown"] == [1.0, 7 / 4]
    assert result["worker_slowdown"] == [[1.0, 1.0], [1.0, 7 / 4]]
    assert result["worker_slowdown_estimate"] == [[1.0, 1.0], [1.0, 7 / 4]]
    assert result["m_w"] == result["m_w_exact"] == 1.0
    assert result["stage_share"] == [0.0, 1.0]
    assert result["m_s"] == 1.0
    assert result["gpu_hours_lost"] == pytest.approx(7 * 4 * (3 / 7) / 3600)


def test_sends_and_recvs_of_a_direction_are_one_type():
    rows = [
        Row("forward-compute", 0, 1),
        Row("forward-send", 1, 1),
        Row("forward-recv", 0, 2, stage=1),
        Row("forward-compute", 2, 1, stage=1),
        Row("optimizer", 3, 1, stage=1),
    ]
    result = report_as_json(analyse(window(rows, pp_size=2)))
    assert set(result["optype_slowdown"]) == {"forward-compute", "forward-pp-comm", "optimizer"}


def test_a_job_of_equal_operations_has_no_shares_from_rounding():
    # The mean of ten times 0.1 s is not 0.1 s in binary.
    rows = in_row(*[("forward-compute", 0.1)] * 10, ("optimizer", 0.1))
    result = report_as_json(analyse(window(rows)))
    assert result["slowdown"] == pytest.approx(1.0)
    assert result["m_w"] is result["m_s"] is None
    assert result["stage_share"] == [None]
