"""Bars of a step, by hand: the job of tests/engine/questions/jobs.py, 7.5 s in two stages."""

import numpy as np
import pytest

from app.engine.replays import prepare
from app.engine.timeline.step_run import (
    Bars,
    bars_within,
    length_s,
    play_step,
    stage_bars,
    waiting_share,
)
from tests.engine.questions.jobs import two_stages
from tests.window_factory import Row, window


def played(kind="recorded", dp_size=1):
    replay = prepare(window(two_stages(dp_size), dp_size=dp_size, pp_size=2))
    return play_step(replay.groups[0], 0, kind)


def spans(found, stage, activity):
    [bars] = [each for each in found if (each.stage, each.activity) == (stage, activity)]
    return list(zip(bars.start_s.tolist(), bars.end_s.tolist(), strict=True))


def test_every_moment_of_a_stage_is_computation_transfer_or_waiting():
    found = stage_bars(played(), 0)
    assert spans(found, 0, "forward") == [(0.0, 1.0)]
    assert spans(found, 0, "backward") == [(6.0, 7.0)]
    assert spans(found, 0, "optimizer") == [(7.0, 7.5)]
    # A transfer begins when the last of both is there: the send at 1 s, the other one at 5.5 s.
    assert spans(found, 0, "transfer") == [(1.0, 1.5), (5.5, 6.0)]
    assert spans(found, 0, "waiting") == [(1.5, 5.5)]
    assert spans(found, 1, "forward") == [(1.5, 3.5)]
    # The last backward of stage 1 ends before the step does, which is stage 0's optimizer.
    assert spans(found, 1, "waiting") == [(0.0, 1.0), (6.5, 7.5)]


def test_waiting_share_equals_the_length_of_waiting_bars():
    run = played()
    assert length_s(run) == 7.5
    assert waiting_share(run, 0) == pytest.approx([4.0 / 7.5, 2.0 / 7.5])


@pytest.mark.parametrize("kind", ["recorded", "ideal"])
def test_waiting_bars_fill_the_gaps_exactly(kind):
    run = played(kind, dp_size=2)
    for stage in range(2):
        mine = [bars for bars in stage_bars(run, 1) if bars.stage == stage]
        spans_s = sorted(
            span
            for bars in mine
            for span in zip(bars.start_s.tolist(), bars.end_s.tolist(), strict=True)
        )
        assert spans_s[0][0] == 0.0
        assert spans_s[-1][1] == pytest.approx(length_s(run))
        reached_s = np.maximum.accumulate([end_s for _, end_s in spans_s])
        # Nothing is left out, and no wait is where something runs.
        assert all(two[0] <= end_s for end_s, two in zip(reached_s, spans_s[1:], strict=False))
        waits = spans(mine, stage, "waiting")
        busy = set(spans_s) - set(waits)
        assert all(one[1] <= two[0] or two[1] <= one[0] for one in waits for two in busy)


def test_operations_of_zero_length_have_no_bar():
    rows = [Row("forward-compute", 0.0, 1.0), Row("backward-compute", 1.0, 0.0)]
    replay = prepare(window([*rows, Row("optimizer", 1.0, 1.0)]))
    found = stage_bars(play_step(replay.groups[0], 0, "recorded"), 0)
    assert spans(found, 0, "backward") == []


def ten_bars(gap_s=0.0):
    start_s = np.arange(10.0) * (1.0 + gap_s)
    return Bars(0, "forward", start_s, start_s + 1, np.arange(10), np.ones(10, np.int64))


def test_bars_wider_than_a_pixel_stay_apart():
    [bars], px_s = bars_within([ten_bars()], 0.0, 10.0, 100, 50)
    assert px_s == pytest.approx(0.1)
    assert bars.num_ops.tolist() == [1] * 10


def test_neighbours_narrower_than_a_pixel_are_one_bar():
    [bars], _ = bars_within([ten_bars()], 0.0, 10.0, 5, 50)
    assert (bars.start_s.tolist(), bars.end_s.tolist()) == ([0.0], [10.0])
    assert (bars.num_ops.tolist(), bars.op.tolist()) == ([10], [0])


def test_bars_a_pixel_apart_are_not_joined():
    [bars], _ = bars_within([ten_bars(gap_s=9.0)], 0.0, 100.0, 20, 50)
    assert bars.num_ops.tolist() == [1] * 10


def test_the_number_of_bars_is_limited():
    drawn, _ = bars_within([ten_bars(), ten_bars(gap_s=1.0)], 0.0, 20.0, 1000, 4)
    assert sum(bars.op.size for bars in drawn) <= 4
    assert sum(int(bars.num_ops.sum()) for bars in drawn) == 20


def test_only_bars_between_the_two_moments_are_drawn():
    [bars], _ = bars_within([ten_bars()], 2.5, 4.5, 1000, 50)
    assert bars.op.tolist() == [2, 3, 4]
