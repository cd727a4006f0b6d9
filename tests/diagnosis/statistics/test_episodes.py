import numpy as np
import pytest

from app.diagnosis.statistics.episodes import bad_steps, episodes_of


def series(*parts):
    """Badness, each for so many steps."""
    return np.concatenate([np.full(count, badness) for badness, count in parts])


def noisy(badness, spread, seed):
    return badness * np.exp(spread * np.random.default_rng(seed).standard_normal(badness.size))


def episodes(badness):
    found = episodes_of(badness)
    assert found is not None
    return found


def test_a_good_series_has_no_episode():
    assert episodes_of(np.ones(20)) is None
    assert episodes_of(np.full(20, np.nan)) is None


def test_a_series_that_is_always_bad_has_no_onset():
    found = episodes(noisy(np.full(40, 1.5), 0.03, 1))
    assert (found.parts, found.begins, found.is_over) == (((0, 40),), False, False)


@pytest.mark.parametrize("onset", [3, 20, 36])
@pytest.mark.parametrize("seed", range(5))
def test_the_onset_is_the_first_bad_step(onset, seed):
    found = episodes(noisy(series((1.0, onset), (1.4, 40 - onset)), 0.02, seed))
    assert (found.first, found.begins, found.is_over) == (onset, True, False)


@pytest.mark.parametrize("seed", range(5))
def test_a_slowdown_that_ended_has_onset_and_end(seed):
    found = episodes(noisy(series((1.0, 12), (1.8, 14), (1.0, 14)), 0.02, seed))
    assert (found.parts, found.begins, found.is_over) == (((12, 26),), True, True)


def test_two_good_steps_at_the_end_are_no_end():
    found = episodes(series((1.0, 12), (1.8, 26), (1.0, 2)))
    assert not found.is_over


def test_single_odd_steps_neither_begin_nor_end_an_episode():
    badness = series((1.0, 20), (1.5, 20))
    badness[5], badness[30], badness[-1] = 1.6, 1.0, 1.0
    found = episodes(badness)
    assert (found.first, found.end) == (20, 40)


def test_a_slowdown_that_comes_and_goes_begins_with_its_first_part():
    found = episodes(noisy(series((1.0, 6), *[(1.5, 4), (1.0, 3)] * 4), 0.02, 3))
    assert found.parts == ((6, 10), (13, 17), (20, 24), (27, 31))
    assert (found.begins, found.is_over) == (True, False)
    assert found.share_bad == pytest.approx(16 / 25)


def test_one_that_comes_and_goes_is_over_after_twice_its_longest_gap():
    badness = series(*[(1.5, 4), (1.0, 5)] * 3, (1.0, 6))
    assert episodes(badness).is_over
    assert not episodes(badness[:-2]).is_over


def test_levels_that_take_turns_every_other_step_are_placed():
    found = episodes(series((1.0, 10), *[(1.5, 1), (1.0, 1)] * 12))
    assert (found.first, found.begins) == (10, True)
    assert 0.4 < found.share_bad < 0.6


def test_an_old_slowdown_is_no_part_of_a_new_one():
    badness = series((1.0, 10), (1.5, 4), (1.0, 60), (1.5, 20))
    assert episodes(badness).parts == ((74, 94),)


def test_a_short_stretch_before_is_no_part_of_a_lasting_slowdown():
    badness = series((1.0, 10), (1.5, 3), (1.0, 10), (1.5, 20))
    assert episodes(badness).parts == ((23, 43),)


def test_worse_steps_of_a_series_that_is_always_bad_are_no_onset():
    found = episodes(series((1.5, 20), (1.65, 20)))
    assert not found.begins


def test_a_level_above_one_is_good_where_bad_ones_are_far_above():
    found = episodes(series((1.5, 30), (9.0, 10)))
    assert (found.first, found.begins) == (30, True)


@pytest.mark.parametrize("seed", range(3))
def test_an_episode_begins_with_its_ramp(seed):
    badness = np.concatenate([np.ones(15), 1 + 0.02 * np.arange(1, 26)])
    found = episodes(noisy(badness, 0.005, seed))
    assert abs(found.first - 15) <= 2
    assert found.ramp_until is not None
    assert found.ramp_until >= 36


def test_a_ramp_from_the_first_step_has_no_onset():
    found = episodes(noisy(1 + 0.02 * np.arange(1, 41), 0.005, 2))
    assert (found.first, found.begins) == (0, False)


def test_unknown_steps_are_skipped():
    badness = series((1.0, 10), (np.nan, 5), (1.5, 10))
    found = episodes(badness)
    assert (found.parts, found.begins) == (((15, 25),), True)
    assert found.positions.tolist() == list(range(15, 25))


@pytest.mark.parametrize("size", range(1, 6))
def test_short_series_have_an_answer(size):
    found = episodes(np.linspace(1.0, 2.0, size) if size > 1 else np.array([1.5]))
    assert found.end <= size


def test_steps_from_half_of_the_median_badness_are_bad():
    assert bad_steps(np.array([1.0, 1.04, 1.1, 1.6, 1.6, 1.6, np.nan])).tolist() == [
        *(False, False, False, True, True, True, False)
    ]
