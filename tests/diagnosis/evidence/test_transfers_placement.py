"""Slow links that a placement on hosts explains, and those that one host explains."""

import numpy as np
import pytest

from app.diagnosis.network.transfers import is_no_placement, is_placement, slow_block


def chain(dp, pp, tp=1):
    """Links between successive stages, and global ranks as launchers number them."""
    pairs = np.array([(stage, stage + 1) for stage in range(pp - 1)])
    rank = tp * (np.arange(dp)[:, None] + dp * np.arange(pp))
    return pairs, rank


def ratios(slow, dp, times=9.0):
    """[links, dp], links that are so many times as slow on all dp ranks, and others."""
    return np.where(np.array(slow, bool)[:, None], times, 1.0) * np.ones(dp)


@pytest.mark.parametrize(
    ("slow", "is_explained"),
    [
        ([0, 1, 0], True),  # two stages a host of 8
        ([1, 1, 0], False),  # stage 1 alone
        ([1, 0, 0], False),  # stage 0 alone: the others would fill one larger host
        ([0, 1, 1], False),
    ],
)
def test_slow_links_that_hosts_of_one_size_explain_are_a_placement(slow, is_explained):
    pairs, rank = chain(dp=4, pp=4)
    assert is_no_placement(ratios(slow, 4), pairs, rank) is not is_explained


def test_small_or_equal_ratios_show_nothing():
    pairs, rank = chain(dp=4, pp=4)
    assert not is_no_placement(ratios([1, 1, 0], 4, times=3.0), pairs, rank)
    assert not is_no_placement(ratios([1, 1, 1], 4), pairs, rank)
    assert not is_no_placement(ratios([0, 0, 0], 4), pairs, rank)


def test_most_links_slow_on_some_dp_ranks_are_no_placement():
    # dp 0 to 3 of stage 0 on the host of ranks 0 to 3; hosts of 4 would make all links slow.
    pairs, rank = chain(dp=6, pp=2)
    assert is_no_placement(np.array([[9.0, 9.0, 9.0, 9.0, 1.0, 1.0]]), pairs, rank)


def test_links_between_hosts_that_cut_stages_are_a_placement():
    # Ranks 0 to 5 and 6 to 11 on hosts of 8: stage 1's first two ranks are on the first host.
    pairs, rank = chain(dp=6, pp=2)
    is_slow = np.array([[False, False, True, True, True, True]])
    assert is_placement(is_slow, pairs, rank)
    is_slow[0, 2] = False
    assert not is_placement(is_slow, pairs, rank)


def test_block_is_the_host_whose_links_to_others_are_slow():
    # The host of ranks 8 to 15: dp 2 to 5 of stage 1, dp 0 to 3 of stage 2.
    pairs, rank = chain(dp=6, pp=4)
    inside = np.isin(rank, range(8, 16))
    is_slow = np.array([inside[:, low] != inside[:, high] for low, high in pairs])
    workers = [(dp, 1) for dp in range(2, 6)] + [(dp, 2) for dp in range(4)]
    assert sorted(slow_block(is_slow, pairs, rank) or []) == sorted(workers)
    is_slow[0, 3] = False
    assert slow_block(is_slow, pairs, rank) is None


def test_one_workers_links_are_no_block():
    pairs, rank = chain(dp=4, pp=4)
    is_slow = np.zeros((3, 4), bool)
    is_slow[:2, 1] = True
    assert slow_block(is_slow, pairs, rank) is None
