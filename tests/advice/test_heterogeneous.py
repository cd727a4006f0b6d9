from itertools import product

import numpy as np
import pytest

from app.advice.move_microbatches import balanced_counts, largest_time_s
from app.errors import InvalidRequest


def test_one_replica_half_as_fast_computes_half_as_many():
    # 3 replicas, 10 micro-batches, the first takes 2 s each: 2, 4, 4 end after 4 s.
    assert balanced_counts(10, [2.0, 1.0, 1.0]) == (2, 4, 4)
    assert largest_time_s((2, 4, 4), [2.0, 1.0, 1.0]) == 4.0


def test_time_besides_counts_as_well():
    # The first replica also takes 3 s whatever its count.
    assert balanced_counts(8, [1.0, 1.0], [3.0, 0.0]) == (3, 5)
    assert largest_time_s((3, 5), [1.0, 1.0], [3.0, 0.0]) == 6.0


def test_every_replica_computes_at_least_one():
    assert balanced_counts(3, [100.0, 1.0, 1.0]) == (1, 1, 1)


def test_counts_are_optimal_in_1000_random_cases():
    rng = np.random.default_rng(19)
    missed = 0
    for _ in range(1000):
        replicas = int(rng.integers(2, 5))
        total = int(rng.integers(replicas, 13))
        each_s = rng.uniform(0.5, 3.0, replicas).tolist()
        besides_s = (rng.uniform(0, 2.0, replicas) * rng.integers(0, 2)).tolist()
        counts = balanced_counts(total, each_s, besides_s)
        assert sum(counts) == total
        least_s = min(
            largest_time_s(others, each_s, besides_s)
            for others in product(range(1, total), repeat=replicas)
            if sum(others) == total
        )
        missed += largest_time_s(counts, each_s, besides_s) > least_s * (1 + 1e-12)
    assert missed == 0


@pytest.mark.parametrize(("total", "each_s"), [(1, [1.0, 1.0]), (3, []), (3, [1.0, 0.0])])
def test_impossible_counts_are_refused(total, each_s):
    with pytest.raises(InvalidRequest):
        balanced_counts(total, each_s)
