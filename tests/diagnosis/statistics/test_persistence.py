import numpy as np
import pytest

from app.diagnosis.job_history import ExtendedHistory, median_over_workers, onset_in_history
from app.diagnosis.statistics.persistence import (
    Onset,
    num_lost_steps,
    onset_of_hits,
    onset_of_losses,
    period,
    persistence,
    rotation,
)


def course(*parts):
    """Badness, each for so many steps."""
    return np.concatenate([np.full(count, badness) for badness, count in parts])


@pytest.mark.parametrize(
    ("badness", "says"),
    [
        (course((1.0, 8)), None),
        (course((1.5, 8)), "chronic"),
        (course((1.0, 4), (1.5, 4)), "chronic"),
        (course((1.0, 5), (1.5, 3)), "transient"),
        (course((1.5, 2), (1.0, 6)), "transient"),
        (1 + 0.1 * np.arange(8), "progressive"),
        (course((1.5, 7), (9.0, 1)), "chronic"),
        (course((np.nan, 6), (1.5, 2)), "chronic"),
        (course((1.0, 30), (1.5, 10)), "chronic"),
        (course((1.0, 8), (1.5, 20), (1.0, 12)), "chronic"),
        (course((1.0, 8), (1.5, 10), (1.0, 22)), "transient"),
        (course(*[(1.5, 4), (1.0, 3)] * 6), "transient"),
        (np.concatenate([np.ones(10), 1 + 0.02 * np.arange(1, 31)]), "progressive"),
        (np.full(8, np.nan), None),
    ],
    ids=["never", "always", "half", "at its end", "at first", "growing", "with a spike",
         "where it is known", "since its onset", "over after most steps",
         "over", "comes and goes", "ramp", "not known"],
)  # fmt: skip
def test_persistence_of_badness(badness, says):
    assert persistence(badness) == says


def test_persistence_counts_the_windows_steps_but_growth_may_begin_before():
    assert persistence(course((1.5, 30), (1.0, 8)), 30) is None
    assert persistence(course((1.0, 30), (1.5, 8)), 30) == "chronic"
    grows = np.concatenate([np.ones(20), 1 + 0.03 * np.arange(1, 21)])
    assert persistence(grows, 32) == "progressive"
    assert persistence(np.concatenate([grows, np.full(70, 1.6)]), 102) == "chronic"


def test_noise_is_not_progressive():
    rng = np.random.default_rng(4)
    for _ in range(200):
        assert persistence(1.5 * np.exp(0.03 * rng.standard_normal(24)), 16) == "chronic"


def test_badness_that_has_stopped_is_not_progressive():
    assert persistence(np.concatenate([1 + 0.2 * np.arange(1, 7), np.ones(10)])) == "transient"


@pytest.mark.parametrize(
    ("culprits", "says"),
    [
        ([0, 1, 2, 3, 0, 2], "rotating"), ([0, 1, -1, 2, -1, -1], "rotating"),
        ([0, 0, 0, 1, 2, 0], None), ([0, 1, 0, 1, 0, 1], None), ([-1, -1], None), ([], None),
    ],
)  # fmt: skip
def test_changing_culprits_are_rotating(culprits, says):
    assert rotation(np.array(culprits, np.int64)) == says


def test_onset_is_a_step_number():
    sampled = ExtendedHistory(np.arange(0, 300, 10), np.ones(30), {}, 22)
    last = onset_in_history(sampled, course((1.0, 20), (1.4, 10)))
    assert (last.onset_step, last.persistence) == (200, "chronic")
    ended = onset_in_history(sampled, course((1.0, 20), (1.4, 5), (1.0, 5)))
    assert (ended.onset_step, ended.end_step) == (200, 240)
    before = onset_in_history(sampled, course((1.0, 5), (1.4, 5), (1.0, 20)))
    assert (before.end_step, before.persistence) == (None, None)
    assert onset_in_history(sampled, np.ones(30)).onset_step is None
    assert onset_in_history(sampled, np.full(30, 1.4)).onset_step is None


@pytest.mark.parametrize(
    ("hits", "onset"),
    [
        ((18, 19), Onset(118, "transient", None)),  # it may go on
        (range(4, 16), Onset(104, "transient", 115)),
        (range(10, 20), Onset(110, "chronic", None)),
    ],
)
def test_a_cause_in_the_newest_steps_is_not_over(hits, onset):
    steps = np.arange(100, 120)
    assert onset_of_hits(steps, np.isin(steps, np.array(hits) + 100)) == onset


def test_median_over_workers_skips_unknown_ones():
    signal = np.array([[[1.0, 2.0], [9.0, np.nan]], [[np.nan, np.nan], [np.nan, np.nan]]])
    usual = median_over_workers(signal)
    assert usual[0] == 2.0
    assert np.isnan(usual[1])


@pytest.mark.parametrize(
    ("hits", "every"),
    [
        (range(2, 20, 4), 4), (range(0, 20, 2), 2), ((3, 10, 17), 7),
        ((3, 10), None), (range(20), None), ((2, 6, 10, 15), None), ((0, 1, 4, 5, 8, 9), None),
        ((2, 6, 14, 18), None),
    ],
    ids=["every 4", "every 2", "three times", "twice", "always",
         "not quite", "blocks", "lacks one"],
)  # fmt: skip
def test_a_loss_that_comes_every_so_many_steps_is_periodic(hits, every):
    steps = np.arange(100, 120)
    assert period(steps, np.isin(steps, np.array(hits) + 100).astype(float)) == every


def test_a_period_is_of_what_is_lost_and_of_steps_that_are_known():
    steps = np.arange(40)
    lost = np.where(steps % 5 == 2, 1.0, 0.02)
    assert period(steps, lost) == 5
    assert period(steps[steps != 17], lost[steps != 17]) == 5
    assert period(steps, np.where(steps % 5 == 2, 1.0, 0.4)) is None, "most is lost in between"
    assert period(steps, np.zeros(40)) is None


def test_a_few_huge_losses_are_transient_whatever_surrounds_them():
    steps, small = np.arange(40), np.full(40, 0.01)
    huge = np.where(np.isin(steps, (5, 20, 31)), 2.0, small)
    assert onset_of_losses(steps, huge).persistence == "transient"
    assert onset_of_losses(steps, small).persistence == "chronic"
    assert num_lost_steps(np.array([1.0, 1.0, 0.0, 1.0])) == pytest.approx(3.0)


def test_one_bad_step_is_no_chronic_slowdown():
    assert persistence(course((1.0, 1), (1.5, 1))) == "transient"


def test_the_worst_culprit_counts_by_what_it_loses():
    culprits = np.array([0, 1, 2, 3, 0, 2])
    assert rotation(culprits, np.array([1.0, 1, 1, 1, 1, 1])) == "rotating"
    assert rotation(culprits, np.array([9.0, 1, 1, 1, 9, 1])) is None
