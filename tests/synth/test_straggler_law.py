import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.synth.straggler_law import TAILS, WORKERS, LogNormalTail, ParetoTail

every_tail = pytest.mark.parametrize("tail", TAILS, ids=lambda tail: tail.label)


def test_the_larger_of_two_log_normals_by_its_closed_form():
    # E max(X, Y) = 2 Phi(s / sqrt 2) for two of mean 1, s^2 = ln(1 + cv^2).
    sigma = math.sqrt(math.log1p(0.5**2))
    by_hand = 1 + math.erf(sigma / 2)
    assert LogNormalTail(0.5).expected_largest(2) == pytest.approx(by_hand, rel=1e-9)


def test_the_larger_of_two_paretos_by_hand():
    # a = 2, t0 = 1/2: t0 + t0 * integral from 1 of 1 - (1 - u^-2)^2 du = t0 (1 + 2 - 1/3).
    assert ParetoTail(2.0).expected_largest(2) == pytest.approx(4 / 3, rel=1e-12)


@every_tail
def test_one_worker_waits_for_nobody(tail):
    assert tail.efficiency(1) == pytest.approx(1.0, abs=1e-9)


@every_tail
def test_more_workers_are_less_efficient(tail):
    shares = [tail.efficiency(num_workers) for num_workers in WORKERS]
    assert all(0 < later < earlier < 1 for earlier, later in itertools.pairwise(shares))


@given(st.floats(0.001, 2.0), st.floats(1.01, 2.0), st.integers(2, 100_000))
def test_a_heavier_tail_is_less_efficient(cv, times, num_workers):
    light, heavy = (LogNormalTail(each).efficiency(num_workers) for each in (cv, times * cv))
    assert heavy < light


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogNormalTail(0.0), "above 0"),
        (lambda: LogNormalTail(math.nan), "above 0"),
        (lambda: ParetoTail(1.0), "no mean"),
        (lambda: ParetoTail(2.0).efficiency(0), "1 or more"),
    ],
)
def test_what_has_no_expected_largest_is_refused(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()
