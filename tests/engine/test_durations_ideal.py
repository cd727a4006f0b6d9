import pytest

from app.engine.grid import lay_out
from app.engine.what_if import replayer
from tests.window_factory import Row, in_row, window


def ideals(rows: list[Row], *, dp_size: int = 1, pp_size: int = 1) -> dict[str, float]:
    replay = replayer(lay_out(window(rows, dp_size=dp_size, pp_size=pp_size)))
    template = replay.grid.template
    return {
        template.describe(op).split()[0]: float(replay.durations.ideal_s[op])
        for op in range(template.num_ops)
    }


@pytest.mark.parametrize("optype", ["forward-compute", "backward-compute", "optimizer", "gc"])
def test_the_ideal_of_compute_is_the_mean(optype):
    assert ideals(in_row((optype, 1), (optype, 2), (optype, 9)))[optype] == 4.0


@pytest.mark.parametrize(
    "optype",
    [
        "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce",
        "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad",
    ],
)  # fmt: skip
def test_an_outlier_does_not_move_the_ideal_of_communication(optype):
    assert ideals(in_row((optype, 1), (optype, 2), (optype, 9)))[optype] == 2.0


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    rows = in_row(*(("layernorm-grads-all-reduce", seconds) for seconds in (1, 2, 4, 100)))
    assert ideals(rows)["layernorm-grads-all-reduce"] == 3.0


def test_one_ideal_holds_for_all_steps_stages_and_dp_ranks():
    rows = [
        Row("forward-compute", 0, 1.0 + 4 * step + 2 * dp_rank + stage, stage, dp_rank, step)
        for step in range(2)
        for dp_rank in range(2)
        for stage in range(2)
    ]
    assert ideals(rows, dp_size=2, pp_size=2) == {"forward-compute": 4.5}


def test_sends_and_recvs_have_separate_ideals_including_unmatched_ones():
    # The pair meets at 2 s and ends at 3 s; the stray recv took 5 s on its own.
    rows = [
        Row("forward-compute", 0, 1),
        Row("forward-send", 1, 2),
        Row("forward-recv", 2, 1, stage=1),
        Row("forward-compute", 3, 1, stage=1),
        Row("forward-recv", 4, 5, stage=1),
    ]
    found = ideals(rows, pp_size=2)
    assert found["forward-send"] == 1.0
    assert found["forward-recv"] == 3.0
