import numpy as np
import pytest

from app.advice.models.checkpoints import (
    daly_interval,
    expected_slowdown,
    expected_waste,
    restart_cost,
    young_interval,
)
from app.errors import InvalidRequest

# Minutes: checkpoint, restart, time between failures.
CASES = [(0.5, 5.0, 480.0), (2.0, 10.0, 180.0), (5.0, 20.0, 1440.0), (10.0, 5.0, 60.0)]


def simulated_slowdown(interval, checkpoint, restart, mtbf, rng, num=200_000):
    """Wall time over computing time of `num` intervals, failure by failure."""
    total = 0.0
    left = np.full(num, interval + checkpoint)
    # A failed interval restarts from its begin; the restart itself may fail, too.
    need = left.copy()
    active = np.arange(num)
    while active.size:
        failure = rng.exponential(mtbf, active.size)
        done = failure >= need[active]
        total += np.where(done, need[active], failure).sum()
        active = active[~done]
        need[active] = restart + interval + checkpoint
    return total / (num * interval)


@pytest.mark.parametrize(("checkpoint", "restart", "mtbf"), CASES)
def test_slowdown_is_that_of_failures_drawn_one_by_one(checkpoint, restart, mtbf):
    interval = daly_interval(checkpoint, mtbf)
    rng = np.random.default_rng(1)
    by_hand = simulated_slowdown(interval, checkpoint, restart, mtbf, rng)
    expected = expected_slowdown(interval, checkpoint, restart, mtbf)
    # Daly's form counts a restart for each failure and e^(R / M) for each interval.
    assert expected == pytest.approx(by_hand, rel=0.02 if checkpoint < 10 else 0.1)


@pytest.mark.parametrize(("checkpoint", "restart", "mtbf"), CASES)
def test_daly_is_nearly_the_best_interval_and_young_not_far(checkpoint, restart, mtbf):
    intervals = np.geomspace(checkpoint / 10, 10 * mtbf, 20_000)
    every = [expected_slowdown(each, checkpoint, restart, mtbf) for each in intervals.tolist()]
    best = intervals[int(np.argmin(every))]
    assert daly_interval(checkpoint, mtbf) == pytest.approx(best, rel=0.01)
    chosen = expected_slowdown(daly_interval(checkpoint, mtbf), checkpoint, restart, mtbf)
    assert chosen <= min(every) * 1.0001
    first_order = expected_slowdown(young_interval(checkpoint, mtbf), checkpoint, restart, mtbf)
    assert min(every) <= first_order <= min(every) * 1.02


def test_formulas_by_hand():
    assert young_interval(2.0, 100.0) == 20.0
    # x = 0.01: 20 (1 + 0.1 / 3 + 0.01 / 9) - 2
    assert daly_interval(2.0, 100.0) == pytest.approx(18.68889, abs=1e-5)
    assert daly_interval(200.0, 100.0) == 100.0
    assert restart_cost(10.0, 30.0) == 25.0


def test_rare_failures_cost_the_checkpoints_alone():
    assert expected_waste(30.0, 1.0, 10.0, 1e9) == pytest.approx(1 / 31, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(value):
    for ask in (young_interval, daly_interval):
        with pytest.raises(InvalidRequest, match="mtbf is"):
            ask(1.0, value)
        with pytest.raises(InvalidRequest, match="checkpoint cost is"):
            ask(value, 1.0)
    with pytest.raises(InvalidRequest, match="restart is -1"):
        restart_cost(-1.0, 10.0)
