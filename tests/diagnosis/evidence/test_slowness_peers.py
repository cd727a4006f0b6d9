import numpy as np
import pytest

from app.diagnosis.evidence.slowness import peer_references, ratios_to_peers


def took(*levels, num_steps=4):
    """[steps, dp, 1], each dp rank always takes this."""
    return np.broadcast_to(np.array(levels)[None, :, None], (num_steps, len(levels), 1)).copy()


@pytest.mark.parametrize(
    ("levels", "measured_by"),
    [
        ([1.0, 1.0, 1.0, 1.6], [0, 1, 2]),
        ([1.0, 1.6], [0]),
        ([1.3, 1.0, 1.3, 1.0], [1, 3]),
        # Three of five are slower, which two fast ones show.
        ([1.3, 1.3, 1.0, 1.0, 1.3], [2, 3]),
        ([1.3] * 6 + [1.0] * 2, [6, 7]),
        ([1.3] * 9 + [1.0] * 2, list(range(11))),
        # One fast worker of four does not make the others slow.
        ([1.0, 0.7, 1.0, 1.0], [0, 1, 2, 3]),
        # A gap that is small, or no larger than the fast ones differ themselves.
        ([1.0, 1.0, 1.0, 1.01], [0, 1, 2, 3]),
        ([1.00, 1.03, 1.06, 1.09], [0, 1, 2, 3]),
        ([1.0], [0]),
    ],
)
def test_reference_is_all_workers_or_the_clearly_faster_ones(levels, measured_by):
    assert np.flatnonzero(peer_references(took(*levels))[:, 0]).tolist() == measured_by


def test_ratios_are_to_the_median_of_the_reference():
    measure = np.array([[True], [True], [True], [False]])
    got = ratios_to_peers(took(1.0, 1.1, 1.2, 2.2), measure)
    np.testing.assert_allclose(got[0, :, 0], [1 / 1.1, 1.0, 1.2 / 1.1, 2.0])


def test_each_stage_has_its_own_reference():
    took_s = np.concatenate([took(1.0, 1.0, 2.0), took(5.0, 5.0, 5.0)], axis=2)
    np.testing.assert_allclose(
        ratios_to_peers(took_s, peer_references(took_s))[0].T, [[1, 1, 2], [1, 1, 1]]
    )
