"""Tensor-parallel peers in real training with gloo: collectives of every member are recorded."""

import pytest

from benchmarks.peers.recorded import SIZES, mean_stays_s, recorded_windows
from tests.torch.launch import needs_torch

pytestmark = [needs_torch, pytest.mark.timeout(600)]

SLOW = 6
PER_STEP = 12  # collectives of a tensor-parallel group


def test_a_slow_peer_has_the_shortest_stays_of_its_group():
    [window] = recorded_windows([SLOW], num_windows=1)
    table = window.collectives
    assert table is not None
    assert sorted({*table.step.tolist()}) == [step for step in window.steps if step % 2 == 0]
    num_steps = len({*table.step.tolist()})
    for rank in range(SIZES.world_size):
        mine = table.select(table.rank == rank)
        axes = [table.groups[at].axis for at in mine.group.tolist()]
        assert axes.count("tp") == PER_STEP * num_steps
        assert axes.count("dp") == num_steps
        place = table.place(rank)
        assert (place.dp_rank, place.stage, place.local_rank) == (rank // 4, 0, rank % 4)
        assert place.host == f"host-{rank // 4}"
    stays_s = mean_stays_s(window)
    peers = [stays_s[rank] for rank in range(4, 8) if rank != SLOW]
    assert stays_s[SLOW] < 0.75 * min(peers)
