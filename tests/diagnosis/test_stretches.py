import numpy as np
import pytest

from app.diagnosis.stretches import spread_of_steps, stretches


def stretch(values, spread=0.01):
    found = stretches(np.array(values, np.float64)[:, None], spread, 0.04)
    return int(found.first[0]), int(found.end[0]), float(found.mean[0]), float(found.deviations[0])


def test_a_stretch_is_where_a_series_is_furthest_above_one():
    assert stretch([1, 1, 1.5, 1.5, 1.5, 1]) == (2, 5, 1.5, pytest.approx(0.5 * np.sqrt(3) / 0.01))


def test_a_series_that_is_never_above_has_none():
    assert stretch([1, 0.9, 1, 1.01]) == (0, 0, 1.0, 0.0)


def test_a_good_step_amid_bad_ones_does_not_end_it():
    assert stretch([1.5, 1.5, 1.0, 1.5, 1.5])[:2] == (0, 5)


def test_of_two_stretches_the_one_with_more_in_it_counts():
    assert stretch([1.3, 0.2, 1.4, 1.4, 0.2, 1.6])[:2] == (2, 4)


def test_spread_is_that_of_single_steps_and_no_change_of_level():
    rng = np.random.default_rng(1)
    series = 1 + 0.02 * rng.standard_normal((400, 5))
    assert spread_of_steps(series, series.mean(axis=0)) == pytest.approx(0.02, rel=0.1)
    series[200:, 0] += 0.3
    assert spread_of_steps(series, series.mean(axis=0)) == pytest.approx(0.02, rel=0.15)


def test_one_step_has_the_spread_between_workers():
    level = np.array([0.99, 1.0, 1.01, 1.02, 3.0])
    assert spread_of_steps(level[None], level) == pytest.approx(1.4826 * 0.01)


def test_nobody_to_be_measured_has_the_least_spread():
    assert spread_of_steps(np.empty((5, 0)), np.empty(0)) > 0
