import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.diagnosis.evidence.job_changes import common_rises
from tests.example_counts import many

NUM_STEPS, SLOW_FROM = 40, 25


def common_rise(values, known=None):
    (found,) = common_rises([values], known)
    return found


def rise_of(values, known=None):
    found = common_rise(values, known)
    assert found is not None
    return found


def signal(ratios, *, cv=0.01, seed=0):
    """[n, dp, pp] of 2 x 4 workers; from a step on each takes its ratio times as long."""
    rng = np.random.default_rng(seed)
    pace = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    slow = np.where(np.arange(NUM_STEPS)[:, None, None] >= SLOW_FROM, ratios, 1.0)
    return pace * slow * np.exp(cv * rng.standard_normal((NUM_STEPS, 2, 4)))


def ratios(**of_workers):
    """[2, 4], 1 but for the workers that are named, as w0 ... w7."""
    flat = np.ones(8)
    for name, ratio in of_workers.items():
        flat[int(name[1:])] = ratio
    return flat.reshape(2, 4)


def test_a_rise_of_all_workers_alike_has_its_step_and_ratio():
    up = rise_of(signal(np.full((2, 4), 1.3)))
    assert up.change.position == SLOW_FROM
    assert up.ratio == pytest.approx(1.3, rel=0.02)
    assert up.badness[:SLOW_FROM] == pytest.approx(np.ones(SLOW_FROM), rel=0.03)
    assert up.badness[SLOW_FROM:] == pytest.approx(np.full(15, 1.3), rel=0.03)
    assert up.factors(20).tolist() == [1.0] * 5 + [up.ratio] * 15


@pytest.mark.parametrize(
    "slow",
    [
        ratios(),
        ratios(w3=2.0),
        ratios(w0=1.5, w1=1.5, w2=1.5, w3=1.5),
        ratios(w3=1.6, w7=1.6),
        ratios(w0=1.4, w1=1.4, w2=1.4, w3=1.4, w4=1.4, w5=1.4, w6=1.4),
        np.array([[1.1, 1.1, 1.1, 1.1], [2.0, 2.0, 2.0, 2.0]]),
    ],
    ids=["nobody", "a worker", "a dp rank", "a stage", "all but one", "unlike"],
)
def test_a_rise_of_some_workers_is_no_common_rise(slow):
    assert common_rise(signal(slow)) is None


def test_a_rise_that_has_ended_is_no_common_rise():
    up = signal(np.full((2, 4), 1.3))
    up[34:] /= 1.3
    assert common_rise(up) is None


def test_one_worker_has_no_common_rise():
    assert common_rise(signal(np.full((2, 4), 1.3))[:, :1, :1]) is None


def test_a_growing_spread_is_no_common_rise():
    up = signal(np.full((2, 4), 1.6))
    up[SLOW_FROM:] *= np.exp(0.12 * np.random.default_rng(1).standard_normal((15, 2, 4)))
    assert common_rise(up) is None


def test_unknown_steps_and_workers_are_skipped():
    up = signal(np.full((2, 4), 1.3))
    up[10:20] = np.nan
    up[:, :, 3] = 0.0  # has nothing of the kind to do
    found = rise_of(up)
    assert found.change.position == SLOW_FROM
    assert np.isnan(found.badness[10:20]).all()


def test_too_few_steps_before_give_no_rise():
    up = signal(np.full((2, 4), 1.3))
    assert common_rise(up[SLOW_FROM - 4 :]) is None
    assert common_rise(up[SLOW_FROM - 6 :]) is not None


@given(st.permutations(range(8)), st.sampled_from([1e-3, 0.5, 40.0]))
@many(20)
def test_rise_does_not_depend_on_worker_order_or_unit(order, factor):
    up = signal(np.full((2, 4), 1.3), cv=0.02)
    shuffled = up.reshape(NUM_STEPS, 8)[:, order].reshape(up.shape) * factor
    one, other = rise_of(up), rise_of(shuffled)
    assert other.change.position == one.change.position
    assert other.ratio == pytest.approx(one.ratio)


def test_a_worker_that_slows_more_hides_no_common_rise():
    up = signal(np.full((2, 4), 1.3))
    up[30:, 1, 2] *= 1.7
    found = rise_of(up)
    assert found.change.position == SLOW_FROM
    assert found.ratio == pytest.approx(1.3, rel=0.02)


def test_an_earlier_change_of_one_worker_hides_no_common_rise():
    up = signal(np.full((2, 4), 1.3))
    up[10:, 0, 1] *= np.geomspace(1.05, 4.0, NUM_STEPS - 10)  # a GPU that throttles
    found = rise_of(up)
    assert found.change.position == SLOW_FROM


def test_a_long_first_step_hides_no_common_rise():
    up = signal(np.full((1, 4), 1.15))[:, :1]
    up[:2] *= 3.9
    found = rise_of(up)
    assert found.ratio == pytest.approx(1.15, rel=0.02)


def test_a_known_change_allows_any_spread_of_workers():
    known = rise_of(signal(np.full((2, 4), 1.3)))
    unlike = np.exp(0.12 * np.random.default_rng(1).standard_normal((15, 2, 4)))
    up = signal(np.full((2, 4), 1.6))
    up[SLOW_FROM:] *= unlike
    found = rise_of(up, known.change)
    assert found.ratio == pytest.approx(1.6, rel=0.06)
    still = signal(ratios(), seed=2)
    still[SLOW_FROM:] *= unlike
    assert common_rise(still, known.change) is None
    assert common_rise(signal(ratios(w3=2.0)), known.change) is None
