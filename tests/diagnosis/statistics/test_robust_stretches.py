import numpy as np
import pytest

from app.diagnosis.statistics.robust import spread_of_steps, stretches


def stretch(values, spread=0.01):
    found = stretches(np.array(values, np.float64)[:, None], spread, 0.04)
    return (
        int(found.first[0]),
        int(found.end[0]),
        float(found.mean[0]),
        float(found.standard_errors[0]),
    )


def test_a_stretch_is_where_a_series_is_furthest_above_one():
    assert stretch([1, 1, 1.5, 1.5, 1.5, 1]) == (2, 5, 1.5, pytest.approx(0.5 * np.sqrt(3) / 0.01))


def test_a_series_never_above_one_has_no_stretch():
    assert stretch([1, 0.9, 1, 1.01]) == (0, 0, 1.0, 0.0)


def test_a_single_good_step_does_not_end_a_stretch():
    assert stretch([1.5, 1.5, 1.0, 1.5, 1.5])[:2] == (0, 5)


def test_the_stretch_with_the_larger_sum_wins():
    assert stretch([1.3, 0.2, 1.4, 1.4, 0.2, 1.6])[:2] == (2, 4)


def test_spread_ignores_a_change_of_level():
    rng = np.random.default_rng(1)
    series = 1 + 0.02 * rng.standard_normal((400, 5))
    assert spread_of_steps(series, series.mean(axis=0)) == pytest.approx(0.02, rel=0.1)
    series[200:, 0] += 0.3
    assert spread_of_steps(series, series.mean(axis=0)) == pytest.approx(0.02, rel=0.15)


def test_spread_of_one_step_is_that_between_workers():
    level = np.array([0.99, 1.0, 1.01, 1.02, 3.0])
    assert spread_of_steps(level[None], level) == pytest.approx(1.4826 * 0.01)


def test_spread_of_no_series_is_the_minimum():
    assert spread_of_steps(np.empty((5, 0)), np.empty(0)) > 0
