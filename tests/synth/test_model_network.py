import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.model import NetworkModel

NETWORK = NetworkModel(alpha_s=1e-3, bytes_per_s=100.0)


def test_a_ring_of_four():
    # 3 rounds of a quarter of 400 bytes each: 3 (1 ms + 1 s); an all-reduce does it twice.
    assert NETWORK.reduce_scatter_s(4, 400) == pytest.approx(3.003)
    assert NETWORK.all_gather_s(4, 400) == pytest.approx(3.003)
    assert NETWORK.all_reduce_s(4, 400) == pytest.approx(6.006)


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 1000])
@pytest.mark.parametrize("num_bytes", [0, 1, 10**9])
def test_an_all_reduce_takes_what_the_closed_form_says(num_ranks, num_bytes):
    alpha, beta, n = 1e-3, 1e-2, num_ranks
    closed_s = 2 * (n - 1) * alpha + 2 * (n - 1) / n * num_bytes * beta
    assert NETWORK.all_reduce_s(n, num_bytes) == pytest.approx(closed_s, rel=1e-12)


@pytest.mark.parametrize("kwargs", [{"alpha_s": -1.0}, {"alpha_s": np.nan}, {"bytes_per_s": 0.0}])
def test_networks_that_cannot_be_are_refused(kwargs):
    with pytest.raises(InvalidRequest):
        NetworkModel(**kwargs)
