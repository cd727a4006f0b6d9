"""The k-th smallest value and the median, against sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.diagnosis.statistics.robust import lower_quantile, quantile_of, quantiles
from app.engine.medians import kth_smallest, median, median_of, median_of_rows, medians_of_known

VALUES = st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, 7.0]) | st.floats(-9, 9), min_size=1)


@given(VALUES, st.data())
def test_the_kth_smallest_is_the_kth_in_order(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values) - 1))
    assert kth_smallest(np.array(values), len(values), k) == sorted(values)[k]


@given(VALUES)
def test_the_median_is_that_of_numpy(values: list[float]) -> None:
    assert median(np.array(values), len(values)) == np.median(values)


def test_selection_uses_only_the_first_count_values() -> None:
    assert kth_smallest(np.array([3.0, 1.0, 2.0, 0.0]), 3, 0) == 1.0
    assert median(np.array([3.0, 1.0, 2.0, 0.0]), 3) == 2.0


@pytest.mark.parametrize("size", [1, 8, 9, 10, 97, 1000])
@pytest.mark.parametrize("order", ["drawn", "ascending", "descending", "equal"])
def test_medians_of_rows_in_any_memory_layout(size: int, order: str) -> None:
    drawn = np.random.default_rng(size).normal(size=(size, 3, 2))
    rows = {
        "drawn": drawn,
        "ascending": np.sort(drawn, axis=0),
        "descending": -np.sort(drawn, axis=0),
        "equal": np.ones_like(drawn),
    }[order].transpose(1, 2, 0)
    assert np.array_equal(medians_of_known(rows), np.median(rows, axis=-1))


@given(VALUES)
def test_the_median_of_all_values_is_that_of_numpy(values: list[float]) -> None:
    assert median_of(np.array(values)) == np.median(values)


def test_the_median_is_nan_where_a_value_is_nan_or_none_is_there() -> None:
    assert np.isnan(median_of(np.array([1.0, np.nan, 2.0])))
    assert np.isnan(median_of(np.empty(0)))


@given(VALUES, st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], share: float) -> None:
    row = np.array(values)
    assert quantile_of(row, share) == pytest.approx(np.quantile(row, share), abs=1e-12)
    assert quantiles(np.stack([row, -row]), share)[1] == quantile_of(-row, share)
    assert lower_quantile(row, share) == np.quantile(row, share, method="lower")


def test_medians_of_known_values_leave_nan_out() -> None:
    rows = np.array([[1.0, np.nan, 3.0, 8.0], [np.nan] * 4, [4.0, 2.0, 1.0, 3.0]])
    assert medians_of_known(rows).tolist()[::2] == [3.0, 2.5]
    assert np.isnan(medians_of_known(rows)[1])
    assert np.isnan(medians_of_known(np.empty((2, 3, 0)))).tolist() == [[True] * 3] * 2


@pytest.mark.parametrize("num", [1, 7, 400, 65_536])
@pytest.mark.parametrize(
    "order", ["drawn", "ascending", "few values", "equal", "outliers", "misled"]
)
def test_the_median_of_some_rows_of_a_large_array(num: int, order: str) -> None:
    drawn = np.random.default_rng(num).lognormal(size=(3 * 66_000 // num + 1, num))
    rows = np.arange(0, len(drawn), 2)
    if order == "ascending":
        drawn = np.sort(drawn, axis=None).reshape(drawn.shape)
    elif order == "few values":
        drawn = np.ceil(drawn)
    elif order == "equal":
        drawn[:] = 2.0
    elif order == "outliers":
        drawn[drawn > np.quantile(drawn, 0.9)] = np.inf
    elif order == "misled":  # as a sample of regular places may be
        chosen = drawn[rows]
        chosen.ravel()[:: chosen.size // 4096 | 1] = 1e9
        drawn[rows] = chosen
    assert median_of_rows(drawn, rows) == np.median(drawn[rows])
