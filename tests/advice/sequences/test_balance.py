from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from app.advice.sequences.balance import CostModel, fit_costs, longest_first
from app.errors import InvalidRequest
from app.trace.window import Ints


def test_longest_goes_to_the_least_loaded_rank():
    # 8 | 7, 6 | 7 + 6 = 13, 8 + 5 = 13; the tie goes to rank 0, which then is full.
    costs = np.array([8.0, 7.0, 6.0, 5.0, 4.0, 3.0])
    assert longest_first(costs, 2).tolist() == [0, 1, 1, 0, 0, 1]


def test_ranks_keep_equal_counts_unless_that_is_not_asked_for():
    costs = np.array([10.0, 1.0, 1.0, 1.0])
    assert longest_first(costs, 2).tolist() == [0, 1, 1, 0]
    assert longest_first(costs, 2, equal_counts=False).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(("number", "ranks"), [(5, 2), (4, 0)])
def test_items_that_cannot_be_split_into_equal_counts_are_refused(number, ranks):
    with pytest.raises(InvalidRequest):
        longest_first(np.ones(number), ranks)


@given(st.integers(1, 5), st.integers(1, 5), st.lists(st.floats(0, 1e6), min_size=25, max_size=25))
def test_many_steps_at_once_are_each_as_alone(ranks, per_rank, costs):
    first = np.array(costs[: ranks * per_rank])
    both = np.column_stack([first, first[::-1]])
    found = longest_first(both, ranks)
    for step in range(2):
        np.testing.assert_array_equal(found[:, step], longest_first(both[:, step], ranks))
    assert (np.bincount(found[:, 0], minlength=ranks) == per_rank).all()


@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=6))
def test_two_ranks_are_at_most_a_third_above_the_best_assignment(costs):
    every = np.array(costs)
    best = min(
        max(every[list(some)].sum(), every.sum() - every[list(some)].sum())
        for size in range(7)
        for some in combinations(range(6), size)
    )
    rank_of = longest_first(every, 2, equal_counts=False)
    loads = np.bincount(rank_of, every, 2)
    assert best * (1 - 1e-9) <= loads.max() <= best * (4 / 3 - 1 / 6) * (1 + 1e-9)


def costs_of(tokens: Ints, squares: Ints, seconds: ArrayLike) -> CostModel:
    """The fitted costs, which there are."""
    found = fit_costs(tokens, squares, np.asarray(seconds, np.float64))
    assert found is not None
    return found


def test_fitted_costs_are_those_that_made_the_durations():
    rng = np.random.default_rng(3)
    tokens, squares = rng.integers(1_000, 9_000, 400), rng.integers(10**6, 10**8, 400)
    seconds = 0.01 + 2e-6 * tokens + 3e-10 * squares
    noise = 1 + 0.01 * rng.standard_normal(400)
    found = costs_of(tokens, squares, seconds * noise)
    assert found.fixed_s == pytest.approx(0.01, rel=0.1)
    assert found.per_token_s == pytest.approx(2e-6, rel=0.1)
    assert found.per_square_s == pytest.approx(3e-10, rel=0.05)
    assert found.r_squared > 0.98
    np.testing.assert_allclose(found.seconds(tokens, squares), seconds, rtol=0.02)


def test_tokens_that_do_not_vary_are_part_of_the_fixed_cost():
    squares = np.random.default_rng(3).integers(10**6, 10**8, 50)
    found = costs_of(np.full(50, 4_096), squares, 0.01 + 3e-10 * squares)
    assert found.fixed_s == pytest.approx(0.01)
    assert found.per_token_s == 0.0
    assert found.per_square_s == pytest.approx(3e-10)


def test_no_cost_is_negative():
    tokens = np.arange(1_000, 1_100)
    squares = tokens**2
    found = costs_of(tokens, squares, 1e-9 * squares - 5e-5)
    assert min(found.fixed_s, found.per_token_s, found.per_square_s) >= 0


@pytest.mark.parametrize("squares", [np.full(50, 10**6), np.arange(50, 0, -1) * 10**6])
def test_lengths_that_do_not_make_longer_have_no_costs(squares):
    assert fit_costs(None, squares, np.linspace(0.01, 0.02, 50)) is None
