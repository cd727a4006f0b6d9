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


def stages(*levels):
    """[steps, dp, pp] of each stage's dp ranks."""
    return np.concatenate([took(*of_stage) for of_stage in levels], axis=2)


@pytest.mark.parametrize(
    ("levels", "measured_by"),
    [
        # One of four is as fast as the other stages: three are slow.
        ([[1.0] * 4, [1.2, 1.5, 1.0, 1.8], [1.0] * 4], [2]),
        # A long stage with one fast worker has no such level.
        ([[1.0] * 4, [1.5, 1.5, 1.3, 1.5], [1.0] * 4], [0, 1, 2, 3]),
        # All are as slow as the older GPUs of the other stages, or more.
        ([[1.0, 1.4, 1.4, 1.0], [1.4] * 4, [1.4, 1.0, 1.0, 1.4]], []),
        ([[1.0, 1.4, 1.4, 1.0], [1.8] * 4, [1.4, 1.0, 1.0, 1.4]], [0, 1, 2, 3]),
        # Few slow workers are no older generation.
        ([[1.0, 1.0, 1.4, 1.0], [1.4] * 4, [1.0] * 4], [0, 1, 2, 3]),
    ],
    ids=["as fast as other stages", "one fast", "older", "longer", "few"],
)
def test_other_stages_show_who_is_slow_in_a_stage(levels, measured_by):
    assert np.flatnonzero(peer_references(stages(*levels))[:, 1]).tolist() == measured_by


@pytest.mark.parametrize(
    ("hosts", "has_reference"),
    [([0, 1, 1, 2], False), ([0, 1, 2, 3], True), ([0, 1, 1, 1], True), ([-1] * 4, True)],
    ids=["of one host", "of two", "part of one", "unknown"],
)
def test_several_stages_of_one_host_have_no_reference(hosts, has_reference):
    took_s = stages([1.0, 1.0], [1.5, 1.5], [1.5, 1.5], [1.0, 1.0])
    of_workers = np.broadcast_to(np.array(hosts), (2, 4))
    assert peer_references(took_s, of_workers)[:, 1:3].all() == has_reference
    assert peer_references(took_s, of_workers)[:, [0, 3]].all()


def test_ranks_that_are_slow_in_turn_are_both_reference():
    took_s = took(1.0, 1.0, num_steps=16)
    took_s[:7, 0], took_s[7:, 1] = 1.5, 1.5
    assert peer_references(took_s).all()


def test_a_stage_without_reference_is_compared_with_the_others():
    took_s = stages([1.0, 1.0], [1.4, 1.5], [1.0, 1.0])
    measure = np.array([[True, False, True]] * 2)
    np.testing.assert_allclose(ratios_to_peers(took_s, measure)[0, :, 1], [1.4, 1.5])


def test_a_step_without_reference_is_compared_with_the_other_steps():
    took_s = took(1.0, 1.0)
    took_s[2] = 1.5
    measure = np.ones(took_s.shape, np.bool_)
    measure[2] = False
    np.testing.assert_allclose(ratios_to_peers(took_s, measure)[2, :, 0], [1.5, 1.5])
