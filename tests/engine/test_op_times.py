import numpy as np
import pytest
from hypothesis import given

from app.engine.op_times import op_times
from app.engine.replays import prepare
from app.result.window_result import OptypeTime, StageCompute
from tests.engine.questions.jobs import two_stages
from tests.example_counts import many
from tests.job_strategies import windows
from tests.window_factory import Row, in_row, replicas, window


def times_of(rows, **sizes):
    return op_times(prepare(window(rows, **sizes)))


def test_micro_batch_time_is_the_stage_mean_over_ranks_and_steps():
    slow = [row.on(duration_s=3.0) if row.optype == "forward-compute" else row
            for row in in_row(("forward-compute", 1.0), ("optimizer", 1.0))]  # fmt: skip
    fast = in_row(("forward-compute", 1.0), ("optimizer", 1.0))
    times = times_of([*fast, *(row.on(dp_rank=1) for row in slow)], dp_size=2)
    assert times.stages == StageCompute(forward=(2.0,), backward=(None,))


def test_micro_batch_times_are_per_stage():
    times = times_of(two_stages(2), dp_size=2, pp_size=2)
    assert times.stages == StageCompute(forward=(1.0, 2.0), backward=(1.0, 2.0))


def test_the_chunks_of_a_micro_batch_are_added_up():
    rows = [
        Row("forward-compute", 0.0, 1.0, mc=0),
        Row("forward-compute", 1.0, 2.0, mc=0),
        Row("forward-compute", 3.0, 4.0, mc=1),
        Row("forward-compute", 7.0, 5.0, mc=1),
    ]
    # Two micro-batches take 1 + 4 and 2 + 5 s.
    assert times_of(rows, vpp_size=2).stages.forward == (6.0,)


def test_the_halves_of_a_split_backward_are_one_micro_batch():
    rows = in_row(
        ("forward-compute", 1.0), ("backward-input-compute", 2.0), ("backward-weight-compute", 0.5)
    )
    assert times_of(rows).stages.backward == (2.5,)


def test_communication_waits_until_its_peers_are_there():
    #  stage 0 sends from 1 s to 7 s, stage 1 receives from 4 s on: 3 s waiting, 3 s moving, and
    #  the receiver moves for 3.5 s.
    rows = [
        Row("forward-compute", 0, 1),
        Row("forward-send", 1.0, 6.0),
        Row("forward-recv", 4.0, 3.5, stage=1),
        Row("forward-compute", 20, 1, stage=1),
    ]
    by_type = times_of(rows, pp_size=2).by_type
    # By step and worker, of which there are two.
    assert by_type["forward-pp-comm"] == OptypeTime(recorded=4.75, transfer=3.25, wait=1.5)
    assert by_type["forward-compute"] == OptypeTime(recorded=1.0, transfer=None, wait=None)


def test_every_step_has_equal_weight():
    rows = replicas(in_row(("forward-compute", 1.0)), 2)
    longer = [row.on(step=1, duration_s=2.0) for row in rows]
    assert times_of([*rows, *longer], dp_size=2).by_type["forward-compute"].recorded == 1.5


@many(40)
@given(windows())
def test_transfer_and_wait_sum_to_the_recorded_time(a_window):
    by_type, trace = op_times(prepare(a_window)).by_type, a_window.trace
    sizes = a_window.job.parallelism
    per_worker_step = sizes.dp_size * sizes.pp_size * len(a_window.steps)
    by_code = a_window.job.op_types.by_code
    for name, times in by_type.items():
        rows = [by_code[code].group == name for code in trace.optype.tolist()]
        recorded_s = trace.duration_s[np.array(rows)].sum() / per_worker_step
        assert times.recorded == pytest.approx(recorded_s)
        if times.wait is not None and times.transfer is not None:
            assert times.wait + times.transfer == pytest.approx(times.recorded)
            assert times.wait >= -1e-12
