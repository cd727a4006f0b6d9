import numpy as np
import pytest

from app.diagnosis.evidence.slowness import slowness_to_peers
from app.diagnosis.evidence.turns_of_few import slow_in_turn_of_few
from app.diagnosis.features import Pace

NUM_STEPS = 12
USUAL = np.arange(NUM_STEPS)


def in_turn(dp_size, ratio=2.0, *, stages=((0,), (1,))):
    """[steps, dp, 2], 1 s each; in each step the next worker (dp rank, stages) takes `ratio` s."""
    took_s = np.random.default_rng(3).normal(1.0, 0.005, (NUM_STEPS, dp_size, 2))
    turns = [(dp_rank, each) for dp_rank in range(dp_size) for each in stages]
    for step in range(NUM_STEPS):
        dp_rank, slow = turns[step % len(turns)]
        took_s[step, dp_rank, list(slow)] *= ratio
    return took_s


def pace(took_s):
    return Pace(took_s, took_s)


@pytest.mark.parametrize("dp_size", [2, 3])
def test_the_slow_worker_of_each_step_is_found_among_few_peers(dp_size):
    took_s = in_turn(dp_size)
    np.testing.assert_array_equal(
        slow_in_turn_of_few(pace(took_s), pace(took_s), USUAL), took_s > 1.5
    )


@pytest.mark.parametrize("dp_size", [2, 3])
def test_ratio_of_workers_in_turn_is_that_to_healthy_peers(dp_size):
    took_s = in_turn(dp_size)
    found = slowness_to_peers(pace(took_s), pace(took_s), USUAL)
    np.testing.assert_allclose(found.ratio, np.where(took_s > 1.5, 2.0, 1.0), rtol=0.03)
    np.testing.assert_allclose(np.add(*found.as_peers), 2.0, rtol=0.03)


@pytest.mark.parametrize(
    "took_s",
    [
        # Long sequences: all stages of a dp rank.
        in_turn(2, stages=((0, 1),)),
        # A lone slow worker, in half of the steps.
        np.where(np.arange(NUM_STEPS)[:, None, None] % 2 * [[1, 0], [0, 0]], 2.0, 1.0),
        # Healthy.
        in_turn(2, ratio=1.0),
        # More peers have a median that holds no slow worker.
        in_turn(4),
    ],
)
def test_no_turns_where_more_or_fewer_workers_are_slow(took_s):
    assert slow_in_turn_of_few(pace(took_s), pace(took_s), USUAL) is None


def test_the_only_stage_shows_a_worker_that_is_slow_every_so_many_steps():
    took_s = np.random.default_rng(3).normal(1.0, 0.005, (NUM_STEPS, 2, 1))
    took_s[1::3, 1] *= 3.0
    both = pace(took_s), pace(took_s)
    np.testing.assert_array_equal(slow_in_turn_of_few(*both, USUAL), took_s > 1.5)
    found = slowness_to_peers(*both, USUAL)
    np.testing.assert_allclose(found.ratio, np.where(took_s > 1.5, 3.0, 1.0), rtol=0.03)
    took_s[4, 1] = 1.0  # as long sequences come: at no interval
    assert slow_in_turn_of_few(*both, USUAL) is None


def test_no_turns_where_one_direction_alone_is_slow():
    took_s = in_turn(2)
    assert slow_in_turn_of_few(pace(took_s), pace(np.ones(took_s.shape)), USUAL) is None
