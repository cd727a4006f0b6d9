"""What people may write to choose steps, workers and runs."""

import numpy as np
import pytest

from app.engine.replays import prepare
from app.engine.timeline.selection import limit_replicas, num_slices, select, slowest_step
from app.errors import InvalidRequest
from tests.window_factory import Row, in_row, window


@pytest.fixture
def replay():
    """Steps 3, 4, 5 and 9 of three replicas of two stages; dp rank 1 is slow in step 5."""
    rows = []
    for step in (3, 4, 5, 9):
        for dp_rank in range(3):
            compute_s = 2.0 if (step, dp_rank) == (5, 1) else 1.0
            end_s = 2.5 if step == 5 else 1.5
            for stage in range(2):
                ops = in_row(("forward-compute", compute_s), stage=stage)
                ops += [Row("optimizer-clip-main-grad", compute_s, end_s - compute_s, stage=stage)]
                ops += [Row("optimizer", end_s, 1.0, stage=stage)]
                rows += [row.on(step=step, dp_rank=dp_rank) for row in ops]
    return prepare(window(rows, dp_size=3, pp_size=2))


def workers(choice):
    return np.argwhere(choice.workers).tolist()


def test_the_default_is_the_slowest_step_with_all_workers_and_runs(replay):
    choice = select(replay)
    assert (choice.steps, choice.runs) == ((5,), ("recorded", "simulated", "ideal"))
    assert choice.workers.all()


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("3", (3,)),
        ("9,3-4", (3, 4, 9)),
        ("5-9", (5, 9)),
        (" 4 , 4", (4,)),
        ("0-99999999", (3, 4, 5, 9)),
    ],
)
def test_steps_are_numbers_and_ranges(replay, text, steps):
    assert select(replay, steps=text).steps == steps


@pytest.mark.parametrize(
    ("text", "named"),
    [("0/1,2/0", [[0, 1], [2, 0]]), ("1/*", [[1, 0], [1, 1]]), ("*/1", [[0, 1], [1, 1], [2, 1]])],
)
def test_workers_are_named_by_dp_rank_and_stage(replay, text, named):
    assert workers(select(replay, workers=text)) == named


def test_ranks_are_global_ranks(replay):
    assert workers(select(replay, ranks="1,3-4")) == [[0, 1], [1, 0], [1, 1]]


def test_runs_come_in_the_usual_order(replay):
    assert select(replay, runs="ideal, recorded").runs == ("recorded", "ideal")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"steps": "6-8"}, "no step from 6 to 8: choose from 3 to 9"),
        ({"steps": "6"}, "step 6 of window 1-3 is not replayed"),
        ({"steps": ""}, "names no step"),
        ({"steps": "4-3"}, "write 3-4"),
        ({"workers": "1"}, "is no DP/STAGE"),
        ({"workers": "1/2"}, "below 2"),
        ({"workers": "3/0"}, "below 3"),
        ({"workers": "a/0"}, "no worker of this job"),
        ({"workers": "0/-1"}, "no worker of this job"),
        ({"ranks": "6-99"}, "no worker recorded as rank '6-99'"),
        ({"ranks": "x"}, "is no number"),
        ({"runs": "real"}, "'real' is none of recorded, simulated, ideal"),
        ({"workers": "0/0", "ranks": "0"}, "give one of them"),
    ],
)
def test_an_invalid_selection_is_refused_in_one_line(replay, named, message):
    with pytest.raises(InvalidRequest, match=message) as refusal:
        select(replay, **named)
    assert "\n" not in str(refusal.value)


def test_operations_are_counted_for_every_run(replay):
    assert num_slices(replay, select(replay, steps="3,4", workers="0/0,2/1", runs="ideal")) == 12
    assert num_slices(replay, select(replay)) == 3 * 6 * 3


def test_a_large_job_shows_the_replicas_on_the_critical_path(replay):
    few = limit_replicas(replay, select(replay), max_ops=20)
    assert workers(few) == [[1, 0], [1, 1]]
    assert len(workers(limit_replicas(replay, select(replay), max_ops=40))) == 4
    assert len(workers(limit_replicas(replay, select(replay), max_ops=1))) == 2


def test_the_slowest_step_is_by_recorded_time():
    # Step 2 waits 5 s for a host that launches late; step 1 computes 1 s longer.
    rows = [
        *in_row(("forward-compute", 2), ("optimizer", 1)),
        *(row.on(step=1) for row in in_row(("forward-compute", 3), ("optimizer", 1))),
        Row("forward-compute", 0, 2, step=2),
        Row("optimizer", 7, 1, step=2),
    ]
    late = prepare(window(rows))
    assert slowest_step(late) == select(late).steps[0] == 2
    assert slowest_step(late, "simulated") == select(late, runs="simulated,ideal").steps[0] == 1
