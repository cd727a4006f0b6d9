"""Jobs of every structure, worked out by hand: all times in seconds."""

from collections.abc import Iterable

import pytest

from app.engine.report import analyse
from app.trace.ops import parse_op_types
from app.trace.window import Window
from tests.reference import figures
from tests.result_comparison import agree
from tests.results import report_as_json
from tests.window_factory import Row, in_row, replicas, there_and_back, window

EXPERTS = parse_op_types(
    [{"name": "dispatch", "kind": "collective", "axis": "ep", "stream": "compute"}]
)


def assert_found(a_window: Window, **want: object) -> None:
    """By the engine and by the definition."""
    for got in (report_as_json(analyse(a_window)), figures(a_window)):
        agree(got, want, "", relative=1e-12)


def step_times(*, simulated: Iterable[float], ideal: Iterable[float]) -> dict:
    return {"simulated": list(simulated), "ideal": list(ideal)}


def test_buckets_launched_inside_a_backward_start_with_the_same_share_of_any_backward():
    # The first bucket starts when half of the backward has run, the second right behind it.
    # dp rank 0: backward 2 to 6, bucket 4 ...; dp rank 1: backward 2 to 7, bucket 4.5 to 8.5.
    def replica(dp_rank: int, backward_s: float) -> list[Row]:
        half_s = 2 + backward_s / 2
        rows = [
            Row("forward-compute", 0, 2),
            Row("backward-compute", 2, backward_s),
            Row("separate-grads-all-reduce", half_s, 8.5 - half_s),
            Row("separate-grads-all-reduce", 8.5, 1),
            Row("optimizer-clip-main-grad", 9.5, 1),
            Row("optimizer", 10.5, 1),
        ]
        return [row.on(dp_rank=dp_rank) for row in rows]

    # Ideal: backward 4.5, buckets 2.5 (the median of 4, 4, 1 and 1); the first one from
    # 2 + 4.5 / 2 = 4.25 to 6.75, the second to 9.25, the clip to 10.25, the optimizer to 11.25.
    # With the recorded backwards, dp rank 1 begins its bucket at 4.5: 0.25 later than ideal.
    # With dp rank 0 recorded, its first bucket runs from 4.25, when dp rank 1 arrives, to 8.25,
    # the second one, ideal on dp rank 1, to 10.75. With dp rank 1 recorded, from 4.5 to 8.5 and 11.
    assert_found(
        window(replica(0, 4) + replica(1, 5), dp_size=2),
        step_time_s=step_times(simulated=[11.5], ideal=[11.25]),
        slowdown=11.5 / 11.25,
        optype_slowdown={"backward-compute": 11.5 / 11.25},
        worker_slowdown=[[12.75 / 11.25], [13.0 / 11.25]],
    )


def test_a_layers_gather_begins_in_the_previous_layer_and_feeds_its_own():
    # On dp rank 0 the first layer's forward takes 2, on dp rank 1 it takes 4; the second layer's
    # gather begins when half of it has run, and ends at 6 on both.
    def replica(dp_rank: int, first_layer_s: float) -> list[Row]:
        half_s = 1 + first_layer_s / 2
        rows = [
            Row("params-all-gather", 0, 1),
            Row("forward-compute", 1, first_layer_s),
            Row("params-all-gather", half_s, 6 - half_s),
            Row("forward-compute", 6, 2),
            Row("backward-compute", 8, 2),
            Row("grads-reduce-scatter", 10, 1),
            Row("backward-compute", 10, 2),
            Row("grads-reduce-scatter", 12, 1),
            Row("optimizer", 13, 1),
        ]
        return [row.on(dp_rank=dp_rank) for row in rows]

    # Ideal: forwards 2.5, gathers 2 (the median of 1, 1, 3 and 3). Gather 0 to 2, forward to 4.5,
    # gather from 3.25 to 5.25, forward to 7.75, backwards to 11.75, scatter 12.75, optimizer 13.75.
    assert_found(
        window(replica(0, 2) + replica(1, 4), dp_size=2),
        step_time_s=step_times(simulated=[14.0], ideal=[13.75]),
        # Forwards as recorded: gather from 2 + 4 / 2 = 4 to 6 while dp rank 1 computes to 6.
        optype_slowdown={"forward-compute": 14.0 / 13.75},
    )


def test_the_previous_stage_waits_only_for_the_input_half_of_a_backward():
    last_stage = in_row(
        ("forward-recv", 2),
        ("forward-compute", 1),
        ("backward-input-compute", 2),
        ("backward-weight-compute", 3),
        ("optimizer", 1),
        stage=1,
    )
    first_stage = [
        *in_row(("forward-compute", 1), ("forward-send", 1)),
        Row("backward-recv", 0, 6),
        *in_row(
            ("backward-input-compute", 2),
            ("backward-weight-compute", 1),
            ("optimizer", 1),
            start_s=6,
        ),
    ]
    # Ideal: weights take 2 on both stages; 1 + 1 + 1 + 2 + 1 for the gradient to arrive, then
    # 2 + 2 + 1 on the first stage.
    assert_found(
        window([*first_stage, *last_stage, Row("backward-send", 5, 1, stage=1)], pp_size=2),
        step_time_s=step_times(simulated=[10.0], ideal=[11.0]),
    )


@pytest.mark.parametrize(("has_ids", "simulated_s"), [(True, 8.0), (False, 6.0)])
def test_sends_posted_in_another_order_are_matched_by_micro_batch(
    has_ids: bool, simulated_s: float
):
    # The first stage computes micro-batch 0 (1 s), then 1 (2 s), but sends 1 first, since the
    # second stage begins with it.
    def between(optype: str, mb_id: int, start_s: float, end_s: float, stage: int) -> Row:
        mb_id = mb_id if has_ids else -1
        return Row(optype, start_s, end_s - start_s, stage=stage, mb_id=mb_id, mc=0)

    rows = [
        Row("forward-compute", 0, 1, mb_id=0),
        Row("forward-compute", 1, 2, mb_id=1),
        between("forward-send", 1, 3, 4, stage=0),
        between("forward-send", 0, 4, 6, stage=0),
        Row("optimizer", 6, 1),
        between("forward-recv", 1, 0, 4, stage=1),
        Row("forward-compute", 4, 1, stage=1, mb_id=1),
        between("forward-recv", 0, 5, 6, stage=1),
        Row("forward-compute", 6, 1, stage=1, mb_id=0),
        Row("optimizer", 7, 1, stage=1),
    ]
    # By id: micro-batch 1 computed at 3, received at 4, computed at 5, then 0 received at 6,
    # computed at 7. By position the first send would leave at 1: 2, 3, then 4, 5.
    # Ideal, forwards 1.25: 2.5, 3.5, 4.75, 5.75, 7, 8; or 1.25, 2.25, 3.5, 4.5, 5.75, 6.75.
    ideal_s = 8.0 if has_ids else 6.75
    assert_found(
        window(rows, pp_size=2), step_time_s=step_times(simulated=[simulated_s], ideal=[ideal_s])
    )


def test_a_registered_expert_collective_meets_its_block_only():
    # Blocks of two dp ranks. Dp rank 3 computes 5 s instead of 1, and dp rank 2 waits for it.
    rows = replicas(in_row(("forward-compute", 1), ("dispatch", 1), ("optimizer", 1)), 2)
    waiting = [Row("forward-compute", 0, 1), Row("dispatch", 1, 5), Row("optimizer", 6, 1)]
    slow = in_row(("forward-compute", 5), ("dispatch", 1), ("optimizer", 1))
    rows += [row.on(dp_rank=2) for row in waiting] + [row.on(dp_rank=3) for row in slow]
    # Every transfer takes 1 s; had dp ranks 0 and 1 met dp rank 3, theirs would take none.
    # Ideal: forwards 2, transfers 1, optimizers 1. With dp rank 2 recorded, nothing is slower.
    assert_found(
        window(rows, dp_size=4, ep_size=2, op_types=EXPERTS),
        step_time_s=step_times(simulated=[7.0], ideal=[4.0]),
        dp_rank_slowdown=[1.0, 1.0, 1.0, 7.0 / 4.0],
        worker_slowdown=[[1.0], [1.0], [1.0], [7.0 / 4.0]],
    )


def steps_of_two_structures() -> list[Row]:
    """One micro-batch in step 0; two, and gc, in step 1, whose backwards take twice as long."""
    rows = []
    for dp_rank, slower_s in ((0, 0.0), (1, 2.0)):
        one = in_row(("forward-compute", 1 + slower_s), ("backward-compute", 2), ("optimizer", 1))
        both = [("forward-compute", 2.0), ("backward-compute", 4.0)] * 2
        two = in_row(*both, ("gc", 1 + slower_s), ("optimizer", 1))
        rows += [row.on(dp_rank=dp_rank, step=0) for row in one]
        rows += [row.on(dp_rank=dp_rank, step=1) for row in two]
    return rows


def test_steps_of_different_structure_have_ideals_of_their_own():
    # Step 0: 6 on dp rank 1; ideal 2 + 2 + 1 = 5. Step 1: 12 + 3 + 1 = 16; ideal 12 + 2 + 1 = 15.
    # With gc as recorded, step 0, which has none, stays ideal.
    assert_found(
        window(steps_of_two_structures(), dp_size=2),
        step_time_s=step_times(simulated=[6.0, 16.0], ideal=[5.0, 15.0]),
        slowdown=22.0 / 20.0,
        step_slowdown=[6.0 / 5.0, 16.0 / 15.0],
        optype_slowdown={"gc": 21.0 / 20.0, "forward-compute": 21.0 / 20.0},
        per_step={"optype_slowdown": {"gc": [1.0, 16.0 / 15.0]}},
    )


def test_a_step_with_different_replicas_is_refused():
    rows = steps_of_two_structures()
    odd = [row.on(step=2) for row in rows if row.step == 1]
    odd = [row for row in odd if row.optype != "gc" or row.dp_rank == 0]
    assert_found(
        window(rows + odd, dp_size=2),
        step_time_s=step_times(simulated=[6.0, 16.0], ideal=[5.0, 15.0]),
        slowdown=22.0 / 20.0,
    )


def test_a_step_with_an_invalid_order_is_refused_alone():
    # In step 0 the clock was set back: by its record, stage 0 went backward before it went forward.
    good = [row for row in there_and_back() if row.optype != "optimizer"]
    swapped = {"forward-compute": 6.0, "forward-send": 7.0, "backward-recv": 0.0}
    bad = [row.on(start_s=swapped.get(row.optype, 1.0)) if row.stage == 0 else row for row in good]
    rows = [*bad, *(row.on(step=step) for step in (1, 2) for row in good)]
    found = analyse(window(rows, pp_size=2))
    assert found.window.steps == (1, 2)
    (skip,) = found.window.skipped
    assert skip.step == 0
    assert "in a circle" in skip.reason
    assert found.simulated_s.tolist() == [8.0, 8.0]


def test_a_step_of_zero_length_is_refused_alone():
    good = in_row(("forward-compute", 1), ("optimizer", 1))
    at_once = [row.on(step=1, start_s=0.0, duration_s=0.0) for row in good]
    alone = [Row("optimizer", 0, 0, step=2)]
    result = report_as_json(analyse(window([*good, *at_once, *alone])))
    assert result["steps"] == [0]
    assert result["slowdown"] == 1.0
    assert [skip["step"] for skip in result["skipped_steps"]] == [1, 2]
    assert all("took no time" in skip["reason"] for skip in result["skipped_steps"])


BEAT = parse_op_types([{"name": "beat", "kind": "collective", "axis": "none"}])
INNER = parse_op_types(
    [{"name": "beat", "kind": "collective", "axis": "none"}, {"name": "loss", "kind": "compute"}]
)


def test_an_overlapped_operation_without_computation_waits_for_nothing():
    rows = [Row("beat", 0, 1), Row("optimizer", 2, 1)]
    assert_found(window(rows, op_types=BEAT), step_time_s=step_times(simulated=[2.0], ideal=[2.0]))


@pytest.mark.parametrize("inner_s", [1.0, 0.0])
def test_the_innermost_running_computation_launches(inner_s):
    # The loss (at 1 s) has ended when the beat begins, halfway through the forward (0 to 10 s),
    # whose end the optimizer waits for: 10 + 2 s. Launched by the loss, which replayed runs behind
    # the forward, the beat would hold the optimizer up until 12 s.
    rows = [
        Row("forward-compute", 0, 10),
        Row("loss", 1, inner_s),
        Row("beat", 5, 1),
        Row("optimizer", 11, 2),
    ]
    assert_found(
        window(rows, op_types=INNER), step_time_s=step_times(simulated=[12.0], ideal=[12.0])
    )
