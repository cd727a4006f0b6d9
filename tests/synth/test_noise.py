import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.noise import NOISES, HeavyTailed, LogNormal, Pareto

MANY = 400_000


def drawn(noise, spread, seed=3):
    return noise.factors(spread, MANY, np.random.default_rng(seed))


@pytest.mark.parametrize("spread", [0.015, 0.05, 0.3])
@pytest.mark.parametrize("noise", [LogNormal(cap=None), Pareto(cap=None)], ids=lambda n: n.name)
def test_the_mean_is_1_and_the_spread_is_what_was_asked_for(noise, spread):
    factors = drawn(noise, spread)
    assert factors.mean() == pytest.approx(1, abs=4 * spread / MANY**0.5)
    assert factors.std() == pytest.approx(spread, rel=0.05)


def test_a_pareto_tail_falls_by_its_exponent():
    # a (a - 2) = 1 / 0.5^2 = 4, so a = 1 + sqrt(5); the least is (a - 1) / a of the mean.
    alpha = 1 + 5**0.5
    factors = drawn(Pareto(cap=None), 0.5)
    least = (alpha - 1) / alpha
    assert Pareto.alpha(0.5) == pytest.approx(alpha)
    assert factors.min() == pytest.approx(least, rel=1e-4)
    assert (factors > 2 * least).mean() == pytest.approx(2**-alpha, rel=0.03)


def test_a_heavy_tail_is_longer_in_the_mean_by_its_share_of_a_pareto():
    # The mean of a Pareto factor of exponent 3 is 3/2: one in ten of them lengthens by 5 %.
    noise = HeavyTailed(cap=None, share=0.1, alpha=3.0)
    factors = drawn(noise, 0.02)
    assert factors.mean() == pytest.approx(1, abs=2e-3)
    assert noise._median(0.02) == pytest.approx(1 / 1.05, rel=1e-3)
    assert (factors > 2 / 1.05).mean() == pytest.approx(0.1 * 2**-3.0, rel=0.1)


@pytest.mark.parametrize("kind", NOISES.values())
def test_nothing_takes_longer_than_three_medians_unless_asked_for(kind):
    factors = drawn(kind(), 0.9)
    median = np.median(factors)
    assert factors.max() == pytest.approx(3 * median, rel=0.02)
    assert drawn(kind(cap=None), 0.9).max() > 4 * median


@pytest.mark.parametrize("kwargs", [{"share": 1.5}, {"share": -0.1}, {"alpha": 1.0}])
def test_tails_without_a_mean_are_refused(kwargs):
    with pytest.raises(InvalidRequest, match="a share of 0 to 1"):
        HeavyTailed(**kwargs)
