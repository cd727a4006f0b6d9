import numpy as np

from app.diagnosis.evidence.sequence_lengths import length_pairs
from app.engine.replays import prepare
from tests.engine.questions.jobs import two_stages
from tests.window_factory import window, with_columns


def a_window():
    """Two steps on two dp ranks; forward takes 1 s and backward 1 s on stage 0."""
    rows = [
        row.on(duration_s=2.0)
        if (row.optype, row.dp_rank, row.stage, row.step) == ("backward-compute", 1, 0, 1)
        else row
        for step in (0, 1)
        for row in two_stages(2, step=step)
    ]
    return window(rows, dp_size=2, pp_size=2)


def test_pairs_without_lengths_are_forward_and_backward_times():
    pairs = length_pairs(prepare(a_window()))
    assert pairs is not None
    assert not pairs.is_lengths
    assert sorted(zip(pairs.x, pairs.y, strict=True)) == [(1, 1), (1, 1), (1, 1), (1, 2)]


def test_pairs_with_lengths_are_squares_and_forward_times():
    made = a_window()
    is_first = (made.trace.optype == 0) & (made.trace.stage == 0)
    lengths = np.where(is_first, 100 * made.trace.dp_rank + made.trace.step, -1)
    pairs = length_pairs(prepare(with_columns(made, seq_len_sq=lengths.astype(np.int64))))
    assert pairs is not None
    assert pairs.is_lengths
    assert sorted(pairs.x) == [0, 1, 100, 101]
    assert pairs.y.tolist() == [1.0] * 4


def test_pairs_of_some_steps_and_none_below_three():
    replay = prepare(a_window())
    assert length_pairs(replay, (1,)) is None
    assert length_pairs(replay, (0, 1)) is not None
