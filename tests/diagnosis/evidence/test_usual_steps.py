import numpy as np
import pytest

from app.diagnosis.evidence.usual_steps import odd_steps


def odd(typical_s, *, begins=False, pp=2, dp=3):
    """The odd ones among steps of two stages, each of whose workers takes this."""
    own_s = np.broadcast_to(np.asarray(typical_s)[:, None, None], (len(typical_s), dp, pp))
    return np.flatnonzero(odd_steps(own_s.copy(), own_s[:, 0, 0] * 1.2, begins=begins)).tolist()


def test_a_single_differing_step_is_odd():
    assert odd([1, 1, 1, 5, 1, 1, 1, 1]) == [3]
    assert odd([1, 1, 1, 0.2, 1, 1, 1, 1]) == [3]


def test_an_evaluation_and_the_checkpoint_after_it_are_odd():
    assert odd([1, 1, 1, 5, 3, 1, 1, 1]) == [3, 4]


def test_a_lasting_change_is_not_odd():
    assert odd([1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1]) == []
    assert odd([1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]) == []


def test_two_odd_steps_at_the_end_may_be_a_change():
    assert odd([1, 1, 1, 1, 1, 1, 1, 2, 2]) == []
    assert odd([1, 1, 1, 1, 1, 1, 1, 1, 2]) == [8]
    # An evaluation and a checkpoint take longer by different times.
    assert odd([1, 1, 1, 1, 1, 1, 1, 2, 4]) == [7, 8]


def test_odd_steps_are_found_on_both_sides_of_a_change():
    assert odd([1, 1, 4, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 7, 2, 2]) == [2, 13]


@pytest.mark.parametrize("begins", [True, False])
def test_first_steps_of_an_unknown_job_are_warm_up(begins):
    assert odd([3, 3, 3, 1, 1, 1, 1, 1, 1, 1], begins=begins) == ([0, 1, 2] if begins else [])


def test_faster_first_steps_are_no_warm_up():
    assert odd([1, 1, 1, 2, 2, 2, 2, 2, 2, 2], begins=True) == []


def test_one_slow_worker_of_two_makes_no_step_odd():
    own_s = np.ones((8, 2, 2))
    own_s[3, 0, 0] = 9.0
    assert not odd_steps(own_s, np.ones(8), begins=False).any()


def test_a_step_with_one_stage_late_is_odd():
    own_s = np.ones((8, 2, 4))
    own_s[3, :, 0] = 9.0
    assert odd_steps(own_s, np.ones(8), begins=False).tolist() == [step == 3 for step in range(8)]


def test_too_many_odd_steps_are_none():
    assert odd([1, 4] * 6) == []


def test_three_steps_have_no_odd_step():
    assert odd([1, 1, 9]) == []


def test_not_all_steps_are_odd():
    assert odd([9, 9, 9, 1], begins=True) != [0, 1, 2, 3]
