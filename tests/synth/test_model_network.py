import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.costs import NetworkModel

NETWORK = NetworkModel(alpha_s=1e-3, bytes_per_s=100.0)


def test_a_ring_of_four():
    # 3 rounds of a quarter of 400 bytes each: 3 (1 ms + 1 s); an all-reduce does it twice.
    assert NETWORK.all_gather_s(4, 400) == pytest.approx(3.003)
    assert NETWORK.all_reduce_s(4, 400) == pytest.approx(6.006)


@pytest.mark.parametrize("kwargs", [{"alpha_s": -1.0}, {"alpha_s": np.nan}, {"bytes_per_s": 0.0}])
def test_networks_that_cannot_be_are_refused(kwargs):
    with pytest.raises(InvalidRequest):
        NetworkModel(**kwargs)
