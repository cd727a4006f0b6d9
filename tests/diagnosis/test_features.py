import numpy as np
import pytest

from app.diagnosis.evidence.slowness import slowness
from app.diagnosis.features import Features, group_signals, work_s
from app.engine.replays import prepare
from app.synth.costs import OperationCosts
from app.synth.schedules import ZeroBubble
from app.trace.ops import OP_CODES
from tests.diagnosis.jobs import case_of, made, window_of
from tests.window_factory import in_row, replicas, window


def features_of(a_window):
    (group,) = prepare(a_window).groups
    return Features(group)


def recorded(a_window, *names):
    """{(dp rank, stage, step): durations of these op types}, the slow and obvious way."""
    trace = a_window.trace
    found: dict[tuple[int, int, int], list[float]] = {}
    for row in range(trace.num_ops):
        if trace.optype[row] in [OP_CODES[name] for name in names]:
            key = int(trace.dp_rank[row]), int(trace.stage[row]), int(trace.step[row])
            found.setdefault(key, []).append(float(trace.duration_s[row]))
    return found


@pytest.mark.parametrize("about", [{}, {"schedule": ZeroBubble()}, {"dp": 1}, {"pp": 1}])
def test_computations_are_those_that_were_recorded(about):
    a_window = window_of(made(**about), num_steps=3)
    group = features_of(a_window)
    splits = "schedule" in about
    names = {
        "forward": ["forward-compute"],
        "backward": ["backward-input-compute", "backward-weight-compute"]
        if splits
        else ["backward-compute"],
    }
    for side in ("forward", "backward"):
        computed = getattr(group, side)
        dp_size, pp_size, num_items, num_steps = computed.duration_s.shape
        assert (num_items, num_steps) == (8, 3)
        for (dp, stage, step), took_s in recorded(a_window, *names[side]).items():
            assert dp < dp_size
            assert stage < pp_size
            own_s = computed.duration_s[dp, stage, :, step]
            assert own_s.sum() == pytest.approx(sum(took_s))
            assert computed.pace.least_s[step, dp, stage] == pytest.approx(own_s.min())
            trimmed = np.sort(own_s)[1:-1].mean()
            assert computed.pace.mean_s[step, dp, stage] == pytest.approx(trimmed)


def test_two_computations_a_step_are_not_trimmed():
    rows = in_row(("forward-compute", 1), ("forward-compute", 3), ("optimizer", 1))
    pace = features_of(window(replicas(rows, 2), dp_size=2)).forward.pace
    np.testing.assert_allclose(pace.mean_s, np.full((1, 2, 1), 2.0))
    np.testing.assert_allclose(pace.least_s, np.full((1, 2, 1), 1.0))


def test_parts_that_are_always_short_are_not_the_least():
    rows = in_row(("forward-compute", 1), ("forward-compute", 9), ("forward-compute", 10))
    forward = features_of(window(replicas(rows, 2), dp_size=2)).forward
    assert forward.is_main.tolist() == [[False, True, True]]
    np.testing.assert_allclose(forward.pace.least_s, np.full((1, 2, 1), 9.0))


def test_a_job_without_backward_has_none():
    rows = in_row(("forward-compute", 1), ("optimizer", 1))
    group = features_of(window(replicas(rows, 2), dp_size=2))
    assert group.backward is None
    assert slowness(case_of(window(replicas(rows, 2), dp_size=2))) is None


def test_signals_of_a_step_match_hand_computed_values():
    # dp rank 1 launches its backward 5 s late and so is late for the exchange.
    rows = in_row(("forward-compute", 2), ("backward-compute", 4), ("grads-reduce-scatter", 1))
    late = [
        row.on(dp_rank=1, start_s=row.start_s + 5 * (row.optype == "backward-compute"))
        for row in rows[:2]
    ]
    last = [rows[2].on(duration_s=6.0), rows[2].on(dp_rank=1, start_s=11.0)]
    ends = [
        each.on(optype="optimizer", start_s=12.0, dp_rank=dp) for dp, each in enumerate(rows[:2])
    ]
    group = features_of(window([*rows[:2], *late, *last, *ends], dp_size=2))
    found = group_signals(group)
    assert "transfer_s" not in found
    np.testing.assert_allclose(found["compute_s"][0, :, 0], [3.0, 3.0])
    np.testing.assert_allclose(found["collective_s"][0, :, 0], [1.0, 1.0])
    np.testing.assert_allclose(found["launch_s"][0, :, 0], [0.0, 5.0])
    np.testing.assert_allclose(work_s(group)[0, :, 0], [2 + 4 + 2, 2 + 4 + 4])


def test_transfers_are_those_between_stages():
    a_window = window_of(made(costs=OperationCosts(noise=0.0, transfer_noise=0.0)), num_steps=2)
    found = group_signals(features_of(a_window))["transfer_s"]
    np.testing.assert_allclose(found, OperationCosts().stage_transfer_s, rtol=0.05)
