"""Ranks of workers: as reported, and by elimination for workers never seen."""

from hypothesis import given
from hypothesis import strategies as st

from app.ingest.assembly.rank_tracker import RankCursor, RankTracker
from app.trace.job import Parallelism

SIZES = Parallelism(2, 3, tp_size=4)  # usual ranks: worker dp * 3 + stage has (stage * 2 + dp) * 4
USUAL = {worker: (worker % 3 * 2 + worker // 3) * 4 for worker in range(6)}


def tracker_of(rank_of_worker):
    return RankTracker(SIZES, [RankCursor(rank, worker) for worker, rank in rank_of_worker.items()])


def test_unseen_workers_have_their_usual_ranks():
    seen = {worker: USUAL[worker] for worker in (0, 1, 4)}
    found = tracker_of(seen)
    assert found.unseen_ranks() == tuple(sorted(USUAL[worker] for worker in (2, 3, 5)))
    assert found.ranks([5, 0]) == tuple(sorted((USUAL[5], USUAL[0])))
    assert found.workers_by_rank([USUAL[5]]) == {USUAL[5]: (1, 2)}


def test_a_missing_worker_gets_the_unused_rank():
    others = {worker: USUAL[5 - worker] for worker in range(5)}
    found = tracker_of(others)
    assert found.unseen_ranks() == (USUAL[0],)
    assert found.workers([USUAL[0], USUAL[1], 99]) == {USUAL[0]: 5, USUAL[1]: 4}


@given(
    ranks=st.permutations(sorted(USUAL.values())),
    seen=st.sets(st.integers(0, 5)),
    peers=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=12),
)
def test_ranks_are_unique(ranks, seen, peers):
    known = {ranks[worker]: worker for worker in seen}
    for rank, worker in peers:
        known.setdefault(rank, worker)
    found = RankTracker(SIZES, [RankCursor(rank, worker) for rank, worker in known.items()])
    all_ranks = found.ranks(range(6))
    assert len({*all_ranks}) == 6
    assert sorted(found.workers(all_ranks).values()) == list(range(6))
    assert not {*found.unseen_ranks()} & {*known}
    assert found.workers(known) == known
