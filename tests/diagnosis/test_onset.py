import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.diagnosis.onset import changes, changes_of_each, latest_onset, latest_onset_of_each
from app.diagnosis.run_lengths import (
    LEVEL_SPREAD,
    PRIOR_VALUES,
    STEPS_A_CHANGE,
    began_at,
)

FINDS = 0.95


def steps(*parts):
    """Levels, each for so many steps."""
    return np.concatenate([np.full(count, level) for level, count in parts])


def noise(kind, cv, size, rng):
    """Values about 1 as steps of healthy jobs have them; tails reach 3 at most."""
    if kind == "log-normal":
        return np.exp(cv * rng.standard_normal(size))
    # Most of it as of a quiet job, and now and then much more.
    tail = cv * rng.pareto(3.0, size)
    return np.minimum(1 + cv / 2 * rng.standard_normal(size) + tail, 3.0)


def test_a_level_that_jumps_is_seen_where_it_does():
    [change] = changes(steps((2.0, 20), (3.0, 10)))
    assert (change.position, change.until) == (20, 20)
    assert (change.before, change.after, change.ratio) == pytest.approx((2.0, 3.0, 1.5))


def test_a_rise_and_the_recovery_from_it_are_two_changes_and_nothing_is_in_effect_then():
    values = steps((1.0, 30), (1.4, 12), (1.0, 8))
    assert [each.position for each in changes(values)] == [30, 42]
    assert latest_onset(values) is None
    up = latest_onset(values[:42])
    assert up is not None
    assert up.position == 30


def test_a_series_that_is_high_from_its_beginning_has_no_onset():
    assert latest_onset(steps((1.8, 30), (1.0, 10))) is None
    assert latest_onset(np.full(40, 1.8)) is None


def test_what_rose_began_with_the_rise_that_brought_it_to_the_upper_half():
    small_first = latest_onset(steps((1.0, 40), (1.12, 40), (2.0, 40)))
    small_last = latest_onset(steps((1.0, 40), (1.8, 40), (2.0, 40)))
    assert small_first is not None
    assert small_last is not None
    assert (small_first.position, small_last.position) == (80, 40)


@pytest.mark.parametrize("odd", [[3.0], [3.0, 2.5]])
@pytest.mark.parametrize("at", [0, 1, 15, 28])
def test_lone_odd_steps_are_no_change(odd, at):
    values = np.ones(30)
    values[at : at + len(odd)] = odd[: 30 - at]
    assert changes(values) == []


@pytest.mark.parametrize("every", [5, 25])
def test_steps_that_are_slow_by_rote_are_no_change(every):
    values = np.ones(200)
    values[::every] = 1.7
    assert changes(values) == []


def test_a_change_is_told_three_steps_after_it():
    values = steps((1.0, 20), (1.5, 3))
    assert changes(values[:-1]) == []
    assert [each.position for each in changes(values)] == [20]


@pytest.mark.parametrize("size", range(7))
def test_short_series_never_change(size):
    assert changes(np.linspace(1.0, 9.0, size, dtype=np.float64)) == []
    assert changes(steps((1.0, size // 2), (9.0, size - size // 2))) == []


def test_a_series_that_stays_the_same_never_changes():
    assert changes(np.full(200, 0.25)) == []
    assert changes(1 + 1e-12 * np.arange(200.0)) == []


@pytest.mark.parametrize("ratio", [1.045, 1.08])
def test_much_less_than_ten_percent_is_no_change(ratio):
    rng = np.random.default_rng(5)
    values = steps((1.0, 100), (ratio, 100)) * noise("log-normal", 0.015, (200, 200), rng)
    assert [found for found in changes_of_each(values) if found] == []


def test_steps_that_are_not_known_are_passed_over():
    values = np.full(60, np.nan)
    values[::2] = steps((1.0, 20), (1.3, 10))
    [change] = changes(values)
    assert change.position == 40
    assert changes(np.full(30, np.nan)) == []
    assert changes(np.zeros(30)) == []


@pytest.mark.parametrize(
    ("begin", "length", "height"), [(30, 20, 0.6), (60, 12, 0.3), (12, 40, 1.0)]
)
def test_what_rises_bit_by_bit_is_one_change_from_where_it_began(begin, length, height):
    rng = np.random.default_rng(3)
    shape = 1 + height * np.clip((np.arange(120) - begin + 1) / length, 0, 1)
    for _ in range(20):
        [change] = changes(shape * noise("log-normal", 0.015, 120, rng))
        assert abs(change.position - begin) <= 4
        assert abs(change.until - (begin + length - 1)) <= 6
        assert change.ratio == pytest.approx(1 + height, rel=0.03)


@pytest.mark.parametrize("kind", ["log-normal", "pareto"])
def test_healthy_series_never_change(kind):
    rng = np.random.default_rng(11)
    for cv in (0.015, 0.03, 0.05):
        for size in (8, 40, 200):
            values = noise(kind, cv, (334, size), rng)
            values[:, 0] *= 1 + 2 * rng.random(334)  # the first step compiles
            values[:, 20::20] *= 1.6  # and these write a checkpoint
            assert [found for found in changes_of_each(values) if found] == []


@pytest.mark.parametrize("kind", ["log-normal", "pareto"])
def test_onsets_are_within_two_steps_in_95_of_100(kind):
    rng = np.random.default_rng(12)
    for cv in (0.015, 0.03, 0.05):
        errors = _errors(kind, cv, rng)
        assert np.isfinite(errors).mean() >= FINDS
        assert (errors <= 2).mean() >= FINDS


def _errors(kind, cv, rng):
    """Steps between a jump by 10 to 100 % and where it was found; infinite where it was not."""
    values = noise(kind, cv, (500, 120), rng)
    begin = rng.integers(10, 100, 500)
    values *= np.where(np.arange(120) >= begin[:, None], 1 + rng.uniform(0.1, 1, (500, 1)), 1)
    found = latest_onset_of_each(values)
    at = [math.inf if each is None else each.position for each in found]
    return np.abs(np.array(at) - begin)


SERIES = arrays(np.float64, st.integers(7, 40), elements=st.floats(0.5, 4.0))


@given(SERIES, st.sampled_from([1e-6, 0.3, 7.0, 1e5]))
@settings(deadline=None)
def test_the_unit_does_not_matter(values, factor):
    plain, scaled = changes(values), changes(values * factor)
    assert [each.position for each in scaled] == [each.position for each in plain]
    assert [each.ratio for each in scaled] == pytest.approx([each.ratio for each in plain])


@given(arrays(np.float64, (5, 24), elements=st.floats(0.5, 4.0)), st.permutations(range(5)))
@settings(deadline=None)
def test_series_do_not_know_of_each_other(values, order):
    found = changes_of_each(values)
    assert changes_of_each(values[order]) == [found[row] for row in order]
    assert found == [changes(series) for series in values]


@given(SERIES)
@settings(deadline=None)
def test_changes_are_in_order_and_of_at_least_five_percent(values):
    found = changes(values)
    assert all(each.position <= each.until for each in found)
    positions = [each.position for each in found]
    assert positions == sorted(set(positions))
    assert all(abs(math.log(each.ratio)) >= math.log(1.05) * 0.999 for each in found)


@given(arrays(np.float64, st.integers(2, 25), elements=st.floats(-1.0, 1.0)), st.floats(0.005, 0.3))
@settings(deadline=None, max_examples=50)
def test_the_weights_of_runs_are_those_of_the_definition(values, scale):
    none_forgotten = began_at(values, scale, forget_below=0.0)
    np.testing.assert_allclose(none_forgotten, by_definition(values, scale), rtol=1e-6, atol=1e-12)


def test_what_is_forgotten_of_runs_does_not_matter():
    rng = np.random.default_rng(6)
    for _ in range(20):
        logs = 0.03 * rng.standard_normal(120) + np.where(np.arange(120) < 70, 0.0, 0.2)
        whole = began_at(logs, 0.03, forget_below=0.0)
        np.testing.assert_allclose(began_at(logs, 0.03), whole, atol=1e-6)


def by_definition(values, scale):
    """Each beginning's weight from all values since, recomputed at each step; none forgotten."""
    size, centre = values.size, float(np.median(values))
    weights = np.zeros((size, size))
    logs = np.full(size, -math.inf)
    for now in range(size):
        if now:
            logs[:now] += math.log(1 - 1 / STEPS_A_CHANGE)
        logs[now] = -math.log(STEPS_A_CHANGE) if now else 0.0
        for begin in range(now + 1):
            logs[begin] += log_predictive(values[now], values[begin:now], centre, scale)
        logs -= logs.max()
        logs -= math.log(np.exp(logs).sum())
        weights[now] = np.exp(logs)
    return weights


def log_predictive(value, seen, centre, scale):
    """Logarithm of the Student t density of a value after those of its run."""
    kappa_0 = (scale / LEVEL_SPREAD) ** 2
    alpha, beta = PRIOR_VALUES / 2, PRIOR_VALUES * scale**2 / 2
    mean = seen.mean() if seen.size else centre
    kappa = kappa_0 + seen.size
    level = (kappa_0 * centre + seen.size * mean) / kappa
    beta += ((seen - mean) ** 2).sum() / 2
    beta += kappa_0 * seen.size * (mean - centre) ** 2 / (2 * kappa)
    freedom = 2 * alpha + seen.size
    spread = math.sqrt(beta * (kappa + 1) / ((alpha + seen.size / 2) * kappa))
    z = (value - level) / spread
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return (
        constant
        - math.log(freedom * math.pi) / 2
        - math.log(spread)
        - (freedom + 1) / 2 * math.log1p(z * z / freedom)
    )
