from math import exp, expm1

import numpy as np
import pytest

from app.advice.models.checkpoints import (
    daly_interval,
    restart_cost,
    young_interval,
)
from app.errors import InvalidRequest

# Minutes: checkpoint, restart, time between failures.
CASES = [(0.5, 5.0, 480.0), (2.0, 10.0, 180.0), (5.0, 20.0, 1440.0), (10.0, 5.0, 60.0)]


def expected_slowdown(interval: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Daly 2006: wall time over computing time; failures also hit checkpoints and restarts."""
    return mtbf * exp(restart / mtbf) * expm1((interval + checkpoint) / mtbf) / interval


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


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(value):
    for ask in (young_interval, daly_interval):
        with pytest.raises(InvalidRequest, match="mtbf is"):
            ask(1.0, value)
        with pytest.raises(InvalidRequest, match="checkpoint cost is"):
            ask(value, 1.0)
    with pytest.raises(InvalidRequest, match="restart is -1"):
        restart_cost(-1.0, 10.0)
