import pytest

from app.advice.fix import Facts
from app.advice.models.checkpoints import daly_interval
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
    with pytest.raises(InvalidRequest, match="mtbf is 0"):
        _ = Facts(restart_minutes=1, checkpoint_save_minutes=2, mtbf_hours=0).stop_minutes
