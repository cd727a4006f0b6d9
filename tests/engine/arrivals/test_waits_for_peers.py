"""Waits for collectives and for peers that paused, inside computations: by hand."""

import numpy as np
import pytest

from app.engine.replays import WindowReplay, prepare
from app.engine.timeline.critical_path import path_of_run
from app.engine.timeline.step_run import play_step
from app.engine.what_if import RECORDED
from app.trace.ops import OP_CODES
from tests import window_factory
from tests.window_factory import Row, replicas

FORWARD = OP_CODES["forward-compute"]
STEPS, RANKS, PAUSED, PAUSED_STEP = 6, 3, 1, 3


def own_s(replay: WindowReplay) -> np.ndarray:
    """[dp, steps], what the forward took a worker itself."""
    (group,) = replay.groups
    row = int(np.flatnonzero(group.template.optype == FORWARD)[0])
    return np.asarray(group.durations.recorded_s[row].reshape(group.dp_size, -1))


def forwards(changed: dict[int, tuple[float, float]], *more: Row) -> WindowReplay:
    """Forwards of 1 s and an optimizer; in one step some begin at a time and take another."""
    rows = []
    for step in range(STEPS):
        for rank in range(RANKS):
            usual = (0.0, 1.0 + 0.001 * ((step + rank) % 2))
            begins_s, took_s = changed.get(rank, usual) if step == PAUSED_STEP else usual
            rows.append(Row("forward-compute", begins_s, took_s, dp_rank=rank, step=step))
            rows.append(Row("optimizer", begins_s + took_s, 0.1, dp_rank=rank, step=step))
    rows += [row.on(dp_rank=PAUSED, step=PAUSED_STEP) for row in more]
    return prepare(window_factory.window(rows, dp_size=RANKS))


def in_paused_step(replay: WindowReplay) -> list[float]:
    seconds: list[float] = own_s(replay)[:, PAUSED_STEP].tolist()
    return seconds


def test_peers_of_a_rank_that_notes_a_collection_lose_their_wait():
    longer = {rank: (0.0, 6.0 if rank == PAUSED else 5.9) for rank in range(RANKS)}
    replay = forwards(longer, Row("gc-pause", 0.2, 5.0))
    assert in_paused_step(replay) == pytest.approx([1.0, 6.0, 1.0], abs=0.02)


def test_peers_of_a_rank_that_begins_late_lose_their_wait():
    late = {0: (0.0, 5.9), PAUSED: (5.0, 1.0), 2: (0.0, 5.9)}
    assert in_paused_step(forwards(late)) == pytest.approx([1.0, 1.0, 1.0], abs=0.02)


@pytest.mark.parametrize(
    "longer",
    [
        dict.fromkeys(range(RANKS), (0.0, 6.0)),  # nobody is known to have paused
        {0: (0.0, 5.9), PAUSED: (5.0, 1.0)},  # of two peers one does not wait
        {0: (0.0, 1.4), PAUSED: (5.0, 1.0), 2: (0.0, 1.4)},  # far less than the pause
    ],
)
def test_computations_keep_their_time_without_a_pause_that_all_others_wait_for(longer):
    kept = [longer.get(rank, (0.0, 1.0))[1] for rank in range(RANKS)]
    assert in_paused_step(forwards(longer)) == pytest.approx(kept, abs=0.02)


def gathered(forward_s: float) -> WindowReplay:
    """A gather begins 2 s into forwards of 10 s; in one step a rank comes 20 s late.

    In that step the others' forwards take `forward_s`.
    """
    rows = []
    for step in range(STEPS):
        for rank in range(RANKS):
            is_late = step == PAUSED_STEP and rank == PAUSED
            took_s = forward_s if step == PAUSED_STEP and rank != PAUSED else 10.0
            begins_s = 22.0 if is_late else 2.0
            ends_s = 23.0 if step == PAUSED_STEP else 3.0
            at = {"dp_rank": rank, "step": step}
            rows.append(Row("forward-compute", 20.0 * is_late, took_s, **at))
            rows.append(Row("params-all-gather", begins_s, ends_s - begins_s, **at))
            rows.append(Row("optimizer", 20.0 * is_late + took_s, 1.0, **at))
    return prepare(window_factory.window(rows, dp_size=RANKS))


def test_a_wait_in_a_gather_is_no_computation_where_this_is_as_much_longer():
    assert in_paused_step(gathered(30.0)) == pytest.approx([10.0, 10.0, 10.0])


def test_a_computation_that_went_on_during_a_wait_keeps_its_time():
    assert in_paused_step(gathered(10.0)) == pytest.approx([10.0, 10.0, 10.0])


def in_half_way() -> WindowReplay:
    """Rank 0 is twice as fast, and waits from 4 s on, half way, for a gather that ends at 7 s.

    The gather takes 5 s and begins on rank 0 after 1 of 8 s, on rank 1 after 2 of 16 s.
    """
    rows = replicas([Row("optimizer", 16.0, 1.0)], 2)
    for rank, took_s, asked_s in ((0, 11.0, 1.0), (1, 16.0, 2.0)):
        rows.append(Row("forward-compute", 0.0, took_s, dp_rank=rank))
        rows.append(Row("params-all-gather", asked_s, 7.0 - asked_s, dp_rank=rank))
    return prepare(window_factory.window([*rows, Row("wait", 4.0, 3.0)], dp_size=2))


def test_what_is_left_of_a_computation_follows_what_it_waited_for():
    (group,) = in_half_way().groups
    assert group.simulated_s.tolist() == pytest.approx([17.0])
    forward = int(np.flatnonzero(group.template.optype == FORWARD)[0])
    assert group.durations.recorded_s[forward].tolist() == pytest.approx([8.0, 16.0])
    # With rank 1 as fast, the gather ends at 6 s and both forwards at 10 s, not at 8 s.
    inside = np.flatnonzero(group.graph.milestone_of == forward)
    edited = np.concatenate([[forward], group.graph.num_ops + inside])
    shares = np.concatenate([[1.0], group.graph.milestone_share[inside]])
    source = np.full(group.graph.num_rows, RECORDED)
    source[edited] = np.arange(edited.size)
    assert group.edited_s(source, 8.0 * shares[:, None] * np.ones(2)).tolist() == pytest.approx(
        [11.0]
    )


def test_the_path_goes_from_what_is_left_of_a_computation_to_what_it_waited_for():
    replay = in_half_way()
    run = play_step(replay.groups[0], 0, "ideal")
    links = path_of_run(run, replay.groups[0].grid.rank).links
    assert [link.gap_s for link in links] == pytest.approx([0.0] * len(links))
    # Of forwards of 12 s: the gather after an eighth takes 5 s, and then half is left.
    optypes = ["forward-compute", "params-all-gather", "forward-compute", "optimizer"]
    assert [link.optype for link in links] == optypes
    assert [link.own_s for link in links] == pytest.approx([1.5, 5.0, 6.0, 1.0])
