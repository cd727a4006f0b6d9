import pytest

from app.advice.all_reduce import straggl_ar_terms
from app.errors import InvalidRequest
from tests.advice.straggl_ar_schedule import Exchange, straggl_ar_rounds


def after_reduce_scatter(num_ranks: int) -> list[list[set[int]]]:
    """[ranks][pieces], whose values each rank has added up."""
    last, all_but_last = num_ranks - 1, set(range(num_ranks - 1))
    return [
        [
            {last} if rank == last else (all_but_last if rank == piece else set())
            for piece in range(last)
        ]
        for rank in range(num_ranks)
    ]


def run(num_ranks: int) -> list[list[set[int]]]:
    held = after_reduce_scatter(num_ranks)
    for exchanges in straggl_ar_rounds(num_ranks):
        ranks = [rank for each in exchanges for rank in (each.one, each.other)]
        assert len(set(ranks)) == len(ranks), "a rank exchanges with two in one round"
        messages = []
        for one, other, one_sends, other_sends in exchanges:
            messages += [(one, other, one_sends), (other, one, other_sends)]
        arrived = [
            (rank, piece, set(held[sender][piece]))
            for sender, rank, piece in messages
            if piece is not None
        ]
        for rank, piece, summed in arrived:
            assert summed, "sent before it was there"
            # A full sum replaces what is there; two others have no rank in common.
            full = len(summed) == num_ranks
            assert full or not summed & held[rank][piece]
            held[rank][piece] = summed if full else held[rank][piece] | summed
    return held


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16, 32, 64])
def test_every_rank_has_the_sum_of_every_piece_after_the_rounds_of_the_model(num_ranks):
    assert len(straggl_ar_rounds(num_ranks)) == straggl_ar_terms(num_ranks).messages
    everyone = set(range(num_ranks))
    assert all(summed == everyone for pieces in run(num_ranks) for summed in pieces)


def test_four_ranks_by_hand():
    assert straggl_ar_rounds(4) == (
        (Exchange(3, 1, 1, 1),),
        (Exchange(3, 0, 0, 0), Exchange(1, 2, 1, None)),
        (Exchange(3, 2, 2, 2), Exchange(0, 1, 0, 1)),
        # The last rank helps to spread the piece that it met last.
        (Exchange(3, 0, 2, 0), Exchange(2, 1, 2, 0)),
    )


@pytest.mark.parametrize("num_ranks", [0, 1, 3, 6, 12])
def test_other_numbers_of_ranks_are_refused(num_ranks):
    with pytest.raises(InvalidRequest, match="2, 4, 8, 16"):
        straggl_ar_rounds(num_ranks)
