from math import exp, expm1

import numpy as np
import pytest

from app.advice.facts import Facts, daly_interval, facts_of
from app.errors import InvalidRequest


def test_stop_costs_the_restart_and_half_of_the_told_interval():
    assert Facts(restart_minutes=10, checkpoint_minutes=30).stop_minutes == 25
    both = Facts(
        restart_minutes=10, checkpoint_minutes=30, checkpoint_save_minutes=2, mtbf_hours=24
    )
    assert both.stop_minutes == 25


def test_unknown_interval_is_the_best_one_where_failures_are_told():
    facts = Facts(restart_minutes=10, checkpoint_save_minutes=2, mtbf_hours=24)
    assert facts.interval_minutes == pytest.approx(daly_interval(2, 24 * 60))
    assert facts.stop_minutes == pytest.approx(10 + daly_interval(2, 24 * 60) / 2)


@pytest.mark.parametrize(
    "facts",
    [
        Facts(),
        Facts(restart_minutes=10),
        Facts(checkpoint_minutes=30),
        Facts(restart_minutes=10, mtbf_hours=24),
        Facts(restart_minutes=10, checkpoint_save_minutes=2),
    ],
)
def test_stop_is_not_known_without_both_parts(facts):
    assert facts.stop_minutes is None


def test_impossible_failures_are_refused():
    for hours in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest, match="mtbf hours: "):
            facts_of(restart_minutes=1, checkpoint_save_minutes=2, mtbf_hours=hours)


def expected_slowdown(interval: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Daly 2006: wall time over computing time; failures also hit checkpoints and restarts."""
    return mtbf * exp(restart / mtbf) * expm1((interval + checkpoint) / mtbf) / interval


# Minutes: checkpoint, restart, time between failures.
@pytest.mark.parametrize(
    ("checkpoint", "restart", "mtbf"),
    [(0.5, 5.0, 480.0), (2.0, 10.0, 180.0), (5.0, 20.0, 1440.0), (10.0, 5.0, 60.0)],
)
def test_daly_is_nearly_the_best_interval(checkpoint, restart, mtbf):
    intervals = np.geomspace(checkpoint / 10, 10 * mtbf, 20_000)
    every = [expected_slowdown(each, checkpoint, restart, mtbf) for each in intervals.tolist()]
    best = intervals[int(np.argmin(every))]
    assert daly_interval(checkpoint, mtbf) == pytest.approx(best, rel=0.01)
    chosen = expected_slowdown(daly_interval(checkpoint, mtbf), checkpoint, restart, mtbf)
    assert chosen <= min(every) * 1.0001


def test_daly_by_hand():
    # x = 0.01: 20 (1 + 0.1 / 3 + 0.01 / 9) - 2
    assert daly_interval(2.0, 100.0) == pytest.approx(18.68889, abs=1e-5)
    assert daly_interval(200.0, 100.0) == 100.0
