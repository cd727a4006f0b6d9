"""Launches of operations that the template's dp rank had queued behind another one."""

import pytest

from app.engine.replays import prepare
from tests.engine.arrivals.ddp_windows import queued_step
from tests.window_factory import Row, in_row, window


def simulated_s(rows: list[Row], num_ranks: int) -> list[float]:
    (group,) = prepare(window(rows, dp_size=num_ranks)).groups
    times_s: list[float] = group.simulated_s.tolist()
    return times_s


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_buckets_begin_when_their_share_has_run_on_the_slow_rank_whichever_it_is(slow):
    passes_s = [20.0 if rank == slow else 10.0 for rank in range(3)]
    # The slow rank's backward ends at 40 s, then the last bucket and the optimizer.
    assert simulated_s(queued_step(passes_s), 3) == pytest.approx([42.0])


def test_the_slow_rank_may_be_another_one_in_each_step():
    rows = queued_step([10.0, 20.0, 10.0]) + queued_step([10.0, 10.0, 30.0], step=1)
    assert simulated_s(rows, 3) == pytest.approx([42.0, 62.0])


def test_another_step_tells_when_buckets_begin_that_all_ranks_had_queued():
    # In step 0 reductions take so long that each bucket waits for the one before on both ranks:
    # 12.5 + 3 * 8 s, and the optimizer.
    rows = queued_step([10.0, 10.0], reduce_s=8.0) + queued_step([10.0, 20.0], step=1)
    assert simulated_s(rows, 2) == pytest.approx([37.5, 42.0])


def test_buckets_that_were_always_queued_wait_for_what_had_ended():
    # Bucket 1 begins at 20.5 s on both ranks, half a second after the backward.
    group = prepare(window(queued_step([10.0, 10.0], reduce_s=8.0), dp_size=2)).groups[0]
    assert group.graph.milestone_share.tolist() == pytest.approx([0.25])
    assert group.simulated_s.tolist() == pytest.approx([37.5])


def test_a_queued_operation_is_asked_for_when_it_starts_at_the_latest():
    # Rank 0 reduces its second bucket behind the first, 1 s into its backward, where rank 1, as
    # fast, asks for it only after 9 of 10 s: ranks differ, so rank 0's own start counts.
    computes = in_row(("forward-compute", 10.0), ("backward-compute", 10.0))
    rows = [row.on(dp_rank=dp_rank) for dp_rank in (0, 1) for row in computes]
    for dp_rank, (first_s, second_s) in enumerate([(10.5, 11.0), (10.5, 19.0)]):
        rows += [
            Row("grads-reduce-scatter", first_s, 11.0 - first_s, dp_rank=dp_rank),
            Row("grads-reduce-scatter", second_s, 19.5 - second_s, dp_rank=dp_rank),
            Row("optimizer", 20.0, 1.0, dp_rank=dp_rank),
        ]
    (group,) = prepare(window(rows, dp_size=2)).groups
    assert group.graph.milestone_share.tolist() == pytest.approx([0.05, 0.1])
    assert group.graph.milestone_lane.tolist() == [0, 0]


def test_a_share_is_read_from_the_rank_that_shows_it():
    (group,) = prepare(window(queued_step([10.0, 20.0]), dp_size=2)).groups
    assert group.graph.milestone_share.tolist() == pytest.approx([0.25, 0.5])
    assert group.graph.milestone_lane.tolist() == [0, 1]
