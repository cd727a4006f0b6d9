import numpy as np
import pytest

from app.diagnosis.statistics.change_points import LIMITS
from app.diagnosis.statistics.ramps import fit_shape, ramp_shape, rising_ramp

RNG = np.random.default_rng(5)


def ramp(before, grows, *, ends=0, to=0.3):
    """Seconds: flat, a ramp in logarithms, and flat again."""
    shape = np.concatenate([np.zeros(before), np.arange(1, grows + 1) / grows, np.ones(ends)])
    return np.exp(to * shape + 0.005 * RNG.standard_normal(shape.size))


def test_a_shape_reaches_one_at_its_end():
    assert ramp_shape(6, 2, 4).tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 1, 1])


@pytest.mark.parametrize(("before", "grows", "ends"), [(12, 20, 0), (12, 12, 12)])
def test_a_ramp_is_placed(before, grows, ends):
    found = rising_ramp(ramp(before, grows, ends=ends), LIMITS.usual)
    assert found is not None
    assert abs(found.position - before) <= 2
    assert abs(found.until - (before + grows - 1)) <= 2
    assert found.ratio == pytest.approx(np.exp(0.3), rel=0.03)


def test_a_jump_is_no_ramp():
    values = np.where(np.arange(40) < 20, 1.0, 1.3) * np.exp(0.01 * RNG.standard_normal(40))
    assert rising_ramp(values, LIMITS.usual) is None


def test_noise_is_no_ramp():
    for _ in range(50):
        assert rising_ramp(np.exp(0.05 * RNG.standard_normal(40)), LIMITS.usual) is None


def test_a_small_rise_is_no_ramp():
    assert rising_ramp(ramp(12, 20, to=0.05), LIMITS.usual) is None


def test_a_ramp_after_a_fall_begins_after_it():
    values = np.concatenate([np.full(12, 2.0), ramp(12, 20)])
    found = rising_ramp(values, LIMITS.usual)
    assert found is not None
    assert abs(found.position - 24) <= 2


def test_the_fit_of_each_series_leaves_out_outliers():
    shape = ramp_shape(40, 10, 39)
    logs = np.stack([1.0 + 0.2 * shape, 2.0 + 0.1 * shape], axis=1)
    logs += 0.002 * RNG.standard_normal(logs.shape)
    logs[20, 0] += 1.0
    found = fit_shape(logs, shape)
    assert found.rise.tolist() == pytest.approx([0.2, 0.1], abs=0.02)
    assert found.level.tolist() == pytest.approx([1.0, 2.0], abs=0.02)
    assert (found.rise_error < 0.01).all()
