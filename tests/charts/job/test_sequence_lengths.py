import numpy as np
import pytest

from app.charts.base.theme import LIGHT
from app.charts.job.sequence_lengths import MAX_DOTS, MicroBatchPairs, least_squares, lengths
from tests.charts.results import unpacked


def test_the_line_through_points_on_a_line_is_that_line():
    found = least_squares(np.array([1.0, 2.0, 4.0]), np.array([5.0, 7.0, 11.0]))
    assert found is not None
    assert list(found) == pytest.approx([3, 2, 1])


def test_how_well_it_fits_is_r_squared():
    # By hand: covariance 1, variances 2 and 2, so r is 0.5.
    found = least_squares(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    assert found is not None
    assert list(found) == pytest.approx([1, 0.5, 0.25])


@pytest.mark.parametrize(("x", "y"), [([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0, 1.0])])
def test_constant_lengths_have_no_fitted_line(x, y):
    assert least_squares(np.array(x), np.array(y)) is None


def test_lengths_are_in_millions_and_times_in_milliseconds():
    pairs = MicroBatchPairs(np.array([1e8, 2e8, 4e8]), np.array([0.12, 0.14, 0.18]), True, 0)
    figure = lengths(pairs, theme=LIGHT)
    dots, line = figure["data"]
    assert unpacked(dots["x"]) == [100.0, 200.0, 400.0]
    assert unpacked(dots["y"]) == pytest.approx([120.0, 140.0, 180.0])
    assert unpacked(line["y"])[0] == pytest.approx(100.0)
    [note] = figure["layout"]["annotations"]
    assert note["text"] == "100 ms + 0.2 ms per million<br>r² 1.00, 3 micro-batches"


def test_without_lengths_forward_is_plotted_against_backward():
    pairs = MicroBatchPairs(np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.4, 0.6]), False, 0)
    figure = lengths(pairs, theme=LIGHT)
    assert "2 \u00d7 forward" in figure["layout"]["annotations"][0]["text"]
    assert figure["meta"]["table"]["columns"] == ["forward, ms", "backward, ms"]


def test_many_micro_batches_are_thinned_but_all_count_for_the_line():
    x = np.linspace(1e6, 2e6, 9216)
    figure = lengths(MicroBatchPairs(x, x / 1e7, True, 0), theme=LIGHT)
    assert len(unpacked(figure["data"][0]["x"])) == MAX_DOTS
    assert "9,216 micro-batches" in figure["meta"]["text"]
    assert figure["meta"]["table"]["caption"] == "The first 200 of 9,216 micro-batches."
