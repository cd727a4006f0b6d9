"""Operations come out of the spool by step and rank, however they went in."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidTrace
from app.trace.readers.op_spool import OpSpool


def spooled(rows, *, block_rows=4, peers=None):
    spool = OpSpool(lambda: "a.json: element 3", block_rows=block_rows)
    for number, (rank, step) in enumerate(rows):
        spool.place(rank, rank, 0, peer=(peers or {}).get(rank, 0))
        spool.add(rank, step, 0, number, 1)
        spool._take_added()
    return spool, spool.finish()


def given_out(done, rows_held=8):
    return [
        (rank, step, each)
        for rank, step, rows in done.groups(rows_held)
        for each in rows["start_ns"]
    ]


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=80),
    block_rows=st.integers(1, 30),
    rows_held=st.integers(1, 40),
)
def test_rows_come_out_by_step_and_rank_and_otherwise_as_they_came(rows, block_rows, rows_held):
    spool, done = spooled(rows, block_rows=block_rows)
    expected = sorted(
        ((rank, step, number) for number, (rank, step) in enumerate(rows)),
        key=lambda each: (each[1], each[0], each[2]),
    )
    assert given_out(done, rows_held) == expected
    groups = [(step, rank) for rank, step, _ in done.groups(rows_held)]
    assert groups == sorted(set(groups))  # each in one piece
    assert done.num_ops == len(rows)
    assert done.steps.tolist() == sorted({step for _, step in rows})
    spool.close()


def test_the_first_start_of_each_step_is_known():
    spool, done = spooled([(0, 5), (1, 4), (0, 4), (1, 5)], block_rows=1)
    assert done.steps.tolist() == [4, 5]
    assert done.first_starts.tolist() == [1, 0]
    spool.close()


def test_of_ranks_at_one_place_the_one_with_the_lowest_peer_is_kept():
    spool = OpSpool(lambda: "a.json")
    for rank, peer in ((0, 1), (1, 0), (2, 2)):
        spool.place(rank, 0, 0, peer=peer)
        spool.add(rank, 1, 0, 10 + rank, 1)
    done = spool.finish()
    assert list(done.places) == [1]
    assert (done.num_peers, done.num_peer_ops, done.num_ops) == (2, 2, 1)
    assert given_out(done) == [(1, 1, 11)]
    spool.close()


def test_two_ranks_cannot_be_the_same_worker():
    spool = OpSpool(lambda: "a.json")
    for rank in (3, 7):
        spool.place(rank, 1, 0)
        spool.add(rank, 1, 0, 10, 1)
    with pytest.raises(InvalidTrace, match="ranks 3 and 7 are both dp_rank 1, stage 0"):
        spool.finish()
    spool.close()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rank": -1}, "rank is -1: want 0 to"),
        ({"step": 2**53 + 1}, "step is 9007199254740993: want 0 to"),
        ({"start_ns": -1}, "start_ns is -1: want 0 to"),
        ({"duration_ns": 86_400 * 10**9 + 1}, "duration_ns is 86400000000001: want 0 to"),
        ({"mc": 2**15}, "mc is 32768: want -1 to"),
        ({"mb_id": -2}, "mb_id is -2: want -1 to"),
        ({"seq_id": 10**400}, "seq_id is 1000000"),
    ],
)
def test_invalid_number_is_refused_with_its_position(more, words):
    spool = OpSpool(lambda: "a.json: element 3")
    op = {"rank": 0, "step": 1, "optype": 0, "start_ns": 5, "duration_ns": 6, **more}
    with pytest.raises(InvalidTrace, match=f"^a.json: element 3: {words}"):
        spool.add(**op)
    columns = {name: np.array([value], object) for name, value in op.items()}
    with pytest.raises(InvalidTrace, match=f"^a.json: element 3: {words}"):
        spool.add_rows(**columns)
    spool.close()


def test_a_rank_is_at_one_place_on_one_host():
    spool = OpSpool(lambda: "a.json: element 3")
    spool.place(1, 0, 1)
    spool.place(1, 0, 1, host="n1")
    with pytest.raises(InvalidTrace, match="element 3: rank 1 is dp_rank 1, stage 1 here and dp_"):
        spool.place(1, 1, 1)
    with pytest.raises(InvalidTrace, match="rank 1 is on host 'n2' here and on 'n1' before"):
        spool.place(1, 0, 1, host="n2")
    spool.close()


def test_large_step_is_one_group():
    chance = random.Random(1)
    rows = [(chance.randrange(2), chance.choice([1, 1, 1, 2])) for _ in range(3000)]
    spool, done = spooled(rows, block_rows=100)
    sizes = {(step, rank): rows.size for rank, step, rows in done.groups(16)}
    assert sizes == {(step, rank): rows.count((rank, step)) for rank, step in set(rows)}
    spool.close()
