"""Tensor-parallel peers in real training with gloo: collectives of every member are recorded."""

import pytest

from app.trace.job import Parallelism
from benchmarks.recording.collected import Collector, served
from tests.torch.launch import needs_torch, train_ranks

pytestmark = [needs_torch, pytest.mark.nightly, pytest.mark.timeout(600)]

SIZES = Parallelism(dp_size=2, pp_size=1, tp_size=2)
NUM_STEPS, SLOW = 8, 3
PER_STEP = 6  # collectives of a tensor-parallel group


def test_a_slow_peer_has_the_shortest_stays_of_its_group(tmp_path):
    collector = Collector("peers", SIZES, NUM_STEPS)
    with served({"peers": collector}) as url:
        arguments = [url, str(NUM_STEPS), str(SLOW)]
        train_ranks(SIZES.world_size, tmp_path, "tests.torch.peer_ranks", *arguments)
    [window] = collector.windows()
    table = window.collectives
    assert table is not None
    grouped_steps = [step for step in window.steps if step % 2 == 0]
    assert sorted({*table.step.tolist()}) == grouped_steps
    stays_s = {}
    for rank in range(SIZES.world_size):
        rows = table.select(table.rank == rank)
        axes = [table.groups[group].axis for group in rows.group.tolist()]
        assert axes.count("tp") == PER_STEP * len(grouped_steps)
        assert axes.count("dp") == len(grouped_steps)
        place = table.place(rank)
        assert (place.dp_rank, place.stage, place.local_rank) == (rank // 2, 0, rank % 2)
        assert place.host == f"host-{rank // 2}"
        in_tp = [axis == "tp" for axis in axes]
        stays_s[rank] = float(rows.stay_s[in_tp].mean())
    assert stays_s[SLOW] < 0.75 * stays_s[SLOW - 1]
