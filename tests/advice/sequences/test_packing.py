from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.advice.sequences.packing import (
    Document,
    OutlierPacker,
    Workload,
    choose_thresholds,
    loader_batches,
    quality_of,
)
from app.errors import InvalidRequest

SQUARES = Workload(0.0, 1.0)
LINEAR = Workload(1.0, 0.0)

some_batches = st.lists(st.lists(st.integers(1, 100), max_size=30), min_size=1, max_size=8)


def documents_of(batches):
    """Each batch's lengths as documents, numbered through."""
    number, found = 0, []
    for step, batch in enumerate(batches):
        found.append([Document(each, number + at, step) for at, each in enumerate(batch)])
        number += len(batch)
    return found


def lengths_of(packed):
    return [sorted((each.tokens for each in microbatch), reverse=True) for microbatch in packed]


def test_documents_go_longest_first_where_the_work_is_least():
    # 5 -> 25 | 0; 4 -> 25 | 16; 3 -> 25 | 25; then 2 to the first of equals.
    packer = OutlierPacker(SQUARES, 2, 100)
    (batch,) = documents_of([[2, 4, 5, 3]])
    assert lengths_of(packer.pack(batch)) == [[5, 2], [4, 3]]


def test_document_that_does_not_fit_goes_to_the_shortest_else_to_the_next_step():
    packer = OutlierPacker(SQUARES, 2, 10)
    (batch,) = documents_of([[9, 5, 5, 4, 1]])
    # 5 and 5 have less work than 9, so 4 goes nowhere: 10 + 4 and 9 + 4 are too many tokens.
    assert lengths_of(packer.pack(batch)) == [[9, 1], [5, 5]]
    assert [each.tokens for each in packer.carried] == [4]
    assert lengths_of(packer.pack([])) == [[4], []]
    assert not packer.carried


def test_shortest_microbatch_takes_what_the_least_loaded_cannot():
    packer = OutlierPacker(SQUARES, 2, 10)
    (batch,) = documents_of([[7, 4, 4, 2, 3]])
    # After 7 | 4, 4: work 49 and 32, tokens 7 and 8. 3 does not fit in 8, and does in 7.
    assert lengths_of(packer.pack(batch)) == [[7, 3], [4, 4, 2]]


def test_outliers_wait_until_each_microbatch_can_have_one():
    packer = OutlierPacker(SQUARES, 2, 100, (10, 50))
    first, second, third = documents_of([[12, 60, 3], [15, 2], [70, 4]])
    assert lengths_of(packer.pack(first)) == [[3], []]
    assert lengths_of(packer.pack(second)) == [[15], [12, 2]]
    assert lengths_of(packer.pack(third)) == [[70], [60, 4]]


@given(some_batches, st.integers(1, 5), st.sampled_from([(), (40,), (20, 60)]))
def test_no_document_is_lost_or_packed_twice(batches, number, thresholds):
    packer = OutlierPacker(SQUARES, number, 120, thresholds)
    batches, packed = documents_of(batches), []
    for batch in batches:
        step = packer.pack(batch)
        assert len(step) == number
        assert all(sum(each.tokens for each in documents) <= 120 for documents in step)
        packed += [each for documents in step for each in documents]
    given_ = [each for batch in batches for each in batch]
    waiting = [*packer.carried, *(each for queue in packer.queues for each in queue)]
    assert Counter(packed + waiting) == Counter(given_)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_packing_is_at_most_a_third_above_the_best(lengths):
    (documents,) = documents_of([lengths])
    packed = OutlierPacker(SQUARES, 2, 10_000).pack(documents)
    found = max(SQUARES.of_all(each) for each in packed)
    best = min(
        max(
            sum(length**2 for length, at in zip(lengths, places, strict=True) if at == side)
            for side in (0, 1)
        )
        for places in product((0, 1), repeat=len(lengths))
    )
    assert best <= found <= best * 7 / 6


def test_loader_cuts_the_last_document_of_each_microbatch():
    (documents,) = loader_batches(iter([6, 6, 3, 9, 9]), 1, 2, 10)
    assert [document.tokens for document in documents] == [6, 4, 3, 7]


def test_delay_is_the_mean_over_tokens_in_steps():
    packer = OutlierPacker(LINEAR, 2, 100, (10,))
    found = quality_of(packer, documents_of([[10, 2], [20, 8]]))
    # 10 tokens of 40 wait one step; 2 | 0 and 20 | 10 + 8.
    assert found.delay_steps == pytest.approx(10 / 40)
    assert found.imbalance == pytest.approx((2 + 20 / 19) / 2)


def test_thresholds_balance_best_within_the_delay():
    batches = documents_of([[100, 1, 1, 1]] * 8)
    arguments = (batches, SQUARES, 2, 1_000, 1)
    chosen = choose_thresholds(*arguments, max_delay_steps=1.0, candidates=(2, 101))
    assert chosen == (2,)
    # Without delay, only a queue that nothing enters will do.
    assert choose_thresholds(*arguments, max_delay_steps=0.0, candidates=(2, 101)) == (101,)


def test_wrong_settings_are_refused():
    with pytest.raises(InvalidRequest, match="ascend"):
        OutlierPacker(SQUARES, 2, 10, (5, 5))
    with pytest.raises(InvalidRequest, match="at least 1"):
        OutlierPacker(SQUARES, 0, 10)
    with pytest.raises(InvalidRequest, match="at most 10"):
        OutlierPacker(SQUARES, 2, 10).pack([Document(11, 0)])
    with pytest.raises(InvalidRequest, match="grows"):
        Workload(0.0, 0.0)
    with pytest.raises(InvalidRequest, match="too few"):
        choose_thresholds([], SQUARES, 2, 10, 3, candidates=(1, 2))
