import numpy as np
import pytest

from app.engine.grid import lay_out
from app.engine.what_if import replayer
from tests.window_factory import Row, window


def own_s(rows: list[Row], *, dp_size: int = 1, pp_size: int = 1) -> dict[str, list[float]]:
    """Own durations of operations by "optype number@stage", over dp ranks and steps."""
    replay = replayer(lay_out(window(rows, dp_size=dp_size, pp_size=pp_size)))
    template = replay.grid.template
    return {
        template.describe(op).replace(" on stage ", "@"): replay.durations.recorded_s[op].tolist()
        for op in range(template.num_ops)
    }


def pair(send_start_s: float, recv_start_s: float, send_end_s: float, recv_end_s: float):
    return [
        Row("forward-compute", 0, 1),
        Row("forward-send", send_start_s, send_end_s - send_start_s),
        Row("forward-recv", recv_start_s, recv_end_s - recv_start_s, stage=1),
        Row("forward-compute", 20, 1, stage=1),
    ]


def test_a_pair_transfers_from_the_later_start():
    found = own_s(pair(1.0, 4.0, 7.0, 7.5), pp_size=2)
    assert found["forward-send 0@0"] == [3.0]
    assert found["forward-recv 0@1"] == [3.5]


@pytest.mark.parametrize(
    ("send_end_s", "transfer_s"), [(3.991, -0.009), (3.98, 0.0), (4.0 - 0.5, 0.0), (4.0, 0.0)]
)
def test_a_transfer_of_minus_10_ms_or_less_counts_as_0(send_end_s, transfer_s):
    found = own_s(pair(1.0, 4.0, send_end_s, 7.5), pp_size=2)
    np.testing.assert_allclose(found["forward-send 0@0"], [transfer_s], atol=1e-12)


def test_exactly_minus_10_ms_counts_as_0():
    # 4.0 - 0.010 - 4.0 is a little more than -0.010 in binary: take starts of 0.
    rows = [
        Row("grads-reduce-scatter", -0.010, 0.0, dp_rank=0),
        Row("grads-reduce-scatter", 0.0, 1.0, dp_rank=1),
    ]
    assert own_s(rows, dp_size=2)["grads-reduce-scatter 0@0"] == [0.0, 1.0]


@pytest.mark.parametrize(
    "optype",
    [
        "params-all-gather",
        "grads-reduce-scatter",
        "separate-grads-all-reduce",
        "optimizer-clip-main-grad",
    ],
)
def test_dp_ranks_meet_within_each_step(optype):
    rows = [
        Row(optype, 0, 5, dp_rank=0, step=0),
        Row(optype, 2, 4, dp_rank=1, step=0),
        Row(optype, 7, 1, dp_rank=0, step=1),
        Row(optype, 0, 9, dp_rank=1, step=1),
    ]
    # [dp rank 0: step 0, step 1; dp rank 1: step 0, step 1]
    assert own_s(rows, dp_size=2)[f"{optype} 0@0"] == [3.0, 1.0, 4.0, 2.0]


def test_a_layernorm_reduction_has_no_peers():
    rows = [Row("layernorm-grads-all-reduce", 3.0 * dp, 5, dp_rank=dp) for dp in range(2)]
    assert own_s(rows, dp_size=2)["layernorm-grads-all-reduce 0@0"] == [5.0, 5.0]


def test_the_embedding_meets_between_first_and_last_stage_of_one_replica():
    name = "embedding-grads-all-reduce"
    rows = [
        Row(name, 10.0 * dp + stage, 9.0 - stage, stage=stage, dp_rank=dp)
        for dp in range(2)
        for stage in range(3)
    ]
    found = own_s(rows, dp_size=2, pp_size=3)
    assert found[f"{name} 0@0"] == found[f"{name} 0@2"] == [7.0, 7.0]
    assert found[f"{name} 0@1"] == [8.0, 8.0]


def test_the_clip_meets_all_stages_of_all_replicas():
    rows = [
        Row("optimizer-clip-main-grad", 2.0 * dp + stage, 10, stage=stage, dp_rank=dp)
        for dp in range(2)
        for stage in range(2)
    ]
    found = own_s(rows, dp_size=2, pp_size=2)
    assert found["optimizer-clip-main-grad 0@0"] == [7.0, 9.0]
    assert found["optimizer-clip-main-grad 0@1"] == [8.0, 10.0]
