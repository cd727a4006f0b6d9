import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.diagnosis.finding import confidence, score


@pytest.mark.parametrize(
    ("ratio", "value"), [(0.9, 0.0), (1.0, 0.0), (1.02, 0.25), (1.04, 0.5), (1.25, 1.0), (9.0, 1.0)]
)
def test_a_score_is_one_half_at_the_limit(ratio, value):
    assert score(ratio, 1.04, 1.25) == pytest.approx(value)


@given(st.floats(0, 5), st.floats(0, 5))
def test_a_worse_figure_has_no_lower_score(one, other):
    low, high = sorted((one, other))
    assert 0 <= score(low, 1.05, 1.3) <= score(high, 1.05, 1.3) <= 1


@given(st.floats(0, 1e4))
def test_confidence_is_never_certainty(deviations):
    assert 0.5 <= confidence(deviations, 6.0) <= 0.99
