import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.diagnosis.statistics.change_points import (
    FORGET_BELOW,
    LEVEL_SPREAD,
    PRIOR_VALUES,
    STEPS_PER_CHANGE,
    advance,
    latest_onset,
    latest_onset_of_each,
    level_changes,
    level_changes_of_each,
    predictive_table,
)
from tests.example_counts import many

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


def test_a_jump_is_found_at_its_position():
    [change] = level_changes(steps((2.0, 20), (3.0, 10)))
    assert (change.position, change.until) == (20, 20)
    assert (change.before, change.after, change.ratio) == pytest.approx((2.0, 3.0, 1.5))


def test_a_rise_and_its_recovery_are_two_changes_without_onset():
    values = steps((1.0, 30), (1.4, 12), (1.0, 8))
    assert [each.position for each in level_changes(values)] == [30, 42]
    assert latest_onset(values) is None
    up = latest_onset(values[:42])
    assert up is not None
    assert up.position == 30


def test_a_series_high_from_the_start_has_no_onset():
    assert latest_onset(steps((1.8, 30), (1.0, 10))) is None
    assert latest_onset(np.full(40, 1.8)) is None


def test_onset_is_the_rise_into_the_upper_half():
    small_first = latest_onset(steps((1.0, 40), (1.12, 40), (2.0, 40)))
    small_last = latest_onset(steps((1.0, 40), (1.8, 40), (2.0, 40)))
    assert small_first is not None
    assert small_last is not None
    assert (small_first.position, small_last.position) == (80, 40)


@pytest.mark.parametrize("odd", [[3.0], [3.0, 2.5]])
@pytest.mark.parametrize("at", [0, 1, 15, 28])
def test_single_odd_steps_are_no_change(odd, at):
    values = np.ones(30)
    values[at : at + len(odd)] = odd[: 30 - at]
    assert level_changes(values) == []


@pytest.mark.parametrize("every", [5, 25])
def test_periodic_slow_steps_are_no_change(every):
    values = np.ones(200)
    values[::every] = 1.7
    assert level_changes(values) == []


def test_a_change_is_found_three_steps_after_it():
    values = steps((1.0, 20), (1.5, 3))
    assert level_changes(values[:-1]) == []
    assert [each.position for each in level_changes(values)] == [20]


@pytest.mark.parametrize("size", range(7))
def test_short_series_never_change(size):
    assert level_changes(np.linspace(1.0, 9.0, size, dtype=np.float64)) == []
    assert level_changes(steps((1.0, size // 2), (9.0, size - size // 2))) == []


def test_a_series_that_stays_the_same_never_changes():
    assert level_changes(np.full(200, 0.25)) == []
    assert level_changes(1 + 1e-12 * np.arange(200.0)) == []


@pytest.mark.parametrize("ratio", [1.045, 1.08])
def test_much_less_than_ten_percent_is_no_change(ratio):
    rng = np.random.default_rng(5)
    values = steps((1.0, 100), (ratio, 100)) * noise("log-normal", 0.015, (200, 200), rng)
    assert [found for found in level_changes_of_each(values) if found] == []


def test_unknown_steps_are_skipped():
    values = np.full(60, np.nan)
    values[::2] = steps((1.0, 20), (1.3, 10))
    [change] = level_changes(values)
    assert change.position == 40
    assert level_changes(np.full(30, np.nan)) == []
    assert level_changes(np.zeros(30)) == []


@pytest.mark.parametrize(
    ("begin", "length", "height"), [(30, 20, 0.6), (60, 12, 0.3), (12, 40, 1.0)]
)
def test_a_ramp_is_one_change_from_its_begin(begin, length, height):
    rng = np.random.default_rng(3)
    shape = 1 + height * np.clip((np.arange(120) - begin + 1) / length, 0, 1)
    for _ in range(20):
        [change] = level_changes(shape * noise("log-normal", 0.015, 120, rng))
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
            assert [found for found in level_changes_of_each(values) if found] == []


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
def test_changes_do_not_depend_on_the_unit(values, factor):
    plain, scaled = level_changes(values), level_changes(values * factor)
    assert [each.position for each in scaled] == [each.position for each in plain]
    assert [each.ratio for each in scaled] == pytest.approx([each.ratio for each in plain])


@given(arrays(np.float64, (5, 24), elements=st.floats(0.5, 4.0)), st.permutations(range(5)))
@settings(deadline=None)
def test_changes_of_each_series_are_independent(values, order):
    found = level_changes_of_each(values)
    assert level_changes_of_each(values[order]) == [found[row] for row in order]
    assert found == [level_changes(series) for series in values]


@given(SERIES)
@settings(deadline=None)
def test_changes_are_in_order_and_of_at_least_five_percent(values):
    found = level_changes(values)
    assert all(each.position <= each.until for each in found)
    positions = [each.position for each in found]
    assert positions == sorted(set(positions))
    assert all(abs(math.log(each.ratio)) >= math.log(1.05) * 0.999 for each in found)


@given(arrays(np.float64, st.integers(2, 25), elements=st.floats(-1.0, 1.0)), st.floats(0.005, 0.3))
@many(50)
def test_run_weights_match_the_definition(values, scale):
    none_forgotten = run_begin_weights(values, scale, forget_below=0.0)
    np.testing.assert_allclose(none_forgotten, by_definition(values, scale), rtol=1e-6, atol=1e-12)


def test_dropped_runs_do_not_change_the_weights():
    rng = np.random.default_rng(6)
    for _ in range(20):
        logs = 0.03 * rng.standard_normal(120) + np.where(np.arange(120) < 70, 0.0, 0.2)
        whole = run_begin_weights(logs, 0.03, forget_below=0.0)
        np.testing.assert_allclose(run_begin_weights(logs, 0.03), whole, atol=1e-6)


def run_begin_weights(values, scale, forget_below=FORGET_BELOW):
    """Weight of each position at which the present run may have begun, [now, begin]."""
    weights = np.zeros((values.size, values.size))
    began = np.empty(values.size + 1, np.int64)
    figures = np.empty((4, values.size + 1))
    table = predictive_table(values.size)
    centre = float(np.median(values))
    num_runs = 0
    for now, value in enumerate(values):
        num_runs = advance(value, now, num_runs, began, figures, centre, scale, table, forget_below)
        weights[now, began[:num_runs]] = figures[3, :num_runs]
    return weights


def by_definition(values, scale):
    """Each beginning's weight from all values since, recomputed at each step; none forgotten."""
    size, centre = values.size, float(np.median(values))
    weights = np.zeros((size, size))
    logs = np.full(size, -math.inf)
    for now in range(size):
        if now:
            logs[:now] += math.log(1 - 1 / STEPS_PER_CHANGE)
        logs[now] = -math.log(STEPS_PER_CHANGE) if now else 0.0
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
