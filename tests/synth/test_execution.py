"""Do made steps hold together, and does the engine, which is built otherwise, replay them?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.report import analyse
from app.synth.costs import OperationCosts
from app.synth.drawing import StepDrawing
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from app.trace.ops import COMPUTE_STREAM, OP_CODES, OP_SPECS
from app.trace.window import Window
from tests.example_counts import many
from tests.results import report_as_json
from tests.synth.custom_fault import CustomFault
from tests.synth.faulty_jobs import compute_only_costs

AT_ONCE = replace(OperationCosts(), launch_delay_s=0.0)


@st.composite
def jobs(draw, costs=AT_ONCE):
    name = draw(st.sampled_from(list(SCHEDULES)))
    pp_size = draw(st.integers(1, 5))
    vpp_size = draw(st.integers(1, 3)) if SCHEDULES[name].has_chunks else 1
    count = draw(st.integers(1, 7))
    count = pp_size * draw(st.integers(1, 2)) if vpp_size > 1 else count
    sizes = Parallelism(draw(st.integers(1, 3)), pp_size, vpp_size=vpp_size)
    seed = draw(st.integers(0, 2**32))
    return SimulatedJob(sizes, count, costs=costs, schedule=SCHEDULES[name], seed=seed)


def result_of(made, num_steps=2):
    steps = tuple(range(num_steps))
    return report_as_json(
        analyse(Window(made.job, 1, 0, steps, made.make(steps), state="complete"))
    )


def quiet(made):
    return replace(made, costs=replace(made.costs, noise=0.0, transfer_noise=0.0))


@given(jobs(), st.booleans())
@many(60)
def test_the_engine_replays_every_schedule_exactly(made, is_quiet):
    times = result_of(quiet(made) if is_quiet else made)["step_time_s"]
    np.testing.assert_allclose(times["simulated"], times["recorded"], rtol=1e-9)


@given(jobs(replace(OperationCosts(), noise=0.05)))
@many(30)
def test_launch_delays_cost_less_than_one_percent(made):
    costs = replace(made.costs, launch_delay_s=1e-5)
    assert result_of(replace(made, costs=costs))["fidelity"]["discrepancy"] < 0.01


@given(jobs())
@many(40)
def test_no_computation_overlaps_another_one_of_its_worker(made):
    trace = made.make([3])
    codes = [OP_CODES[spec.name] for spec in OP_SPECS if spec.stream == COMPUTE_STREAM]
    computed = trace.select(np.isin(trace.optype, codes))
    order = np.lexsort((computed.start_s, computed.stage, computed.dp_rank))
    end_s = (computed.start_s + computed.duration_s)[order]
    same = (np.diff(computed.stage[order]) == 0) & (np.diff(computed.dp_rank[order]) == 0)
    assert (computed.start_s[order][1:][same] >= end_s[:-1][same]).all()


@given(jobs())
@many(40)
def test_sends_and_receives_end_together_after_both_have_begun(made):
    trace = made.make([3])
    chunks = made.parallelism.pp_size * made.parallelism.vpp_size
    for direction, onward in (("forward", 1), ("backward", -1)):
        sides = []
        for name, moved in ((f"{direction}-send", onward), (f"{direction}-recv", 0)):
            ops = trace.select(trace.optype == OP_CODES[name])
            into = ops.mc * made.parallelism.pp_size + ops.stage + moved
            order = np.lexsort((ops.dp_rank, ops.mb_id, into))
            sides.append((into[order], ops.start_s[order], (ops.start_s + ops.duration_s)[order]))
        (sent_into, sent_s, left_s), (into, posted_s, came_s) = sides
        np.testing.assert_array_equal(sent_into, into)
        num_passed_on = chunks - 1 if made.parallelism.pp_size > 1 else 0
        assert into.size == num_passed_on * made.num_microbatches * made.parallelism.dp_size
        np.testing.assert_allclose(left_s, came_s, rtol=0, atol=1e-12)
        assert (came_s > np.maximum(sent_s, posted_s)).all()


@given(jobs(), st.permutations(range(5)))
@many(20)
def test_a_step_is_the_same_in_whatever_block_it_is_made(made, steps):
    whole = made.make(steps)
    for position, step in enumerate(steps):
        alone = made.make([step])
        rows = slice(position * alone.num_ops, (position + 1) * alone.num_ops)
        np.testing.assert_array_equal(whole.start_s[rows], alone.start_s)
        np.testing.assert_array_equal(whole.duration_s[rows], alone.duration_s)


def test_both_halves_of_a_split_backward_stray_by_themselves():
    sizes, costs = Parallelism(4, 2), replace(OperationCosts(), noise=0.03, weight_share=0.4)
    drawn = StepDrawing(sizes, 64, costs, splits=True).draw(range(4), seed=1)
    assert drawn.weight_share is not None
    weight_s = drawn.backward_s * drawn.weight_share
    input_s = drawn.backward_s - weight_s
    for half_s, mean_s in ((weight_s, 0.016), (input_s, 0.024)):
        assert half_s.mean() == pytest.approx(mean_s, rel=0.005)
        assert half_s.std() / half_s.mean() == pytest.approx(0.03, rel=0.05)
    assert abs(np.corrcoef(weight_s.ravel(), input_s.ravel())[0, 1]) < 0.06


def late_second_forward_of_stage_1(drawn):
    drawn.forward_delay_s[1, 0, 1, :, 0] += 0.5


def test_a_late_computation_makes_those_wait_who_need_it():
    late = CustomFault(late_second_forward_of_stage_1)
    made = SimulatedJob(Parallelism(1, 2), 2, costs=compute_only_costs(1.0, 2.0), faults=(late,))
    trace = made.make([0])
    code = [OP_CODES["forward-compute"], OP_CODES["backward-compute"]]
    start_s = {
        (int(o), int(p), int(m)): float(s)
        for o, p, m, s in zip(trace.optype, trace.stage, trace.mb_id, trace.start_s, strict=True)
    }
    #        stage 0: f0 f1 .. b0 b0 . b1 b1         stage 1: . f0 b0 b0 - f1 b1 b1
    assert [start_s[code[0], 1, m] for m in (0, 1)] == [1.0, 4.5]
    assert [start_s[code[1], 1, m] for m in (0, 1)] == [2.0, 5.5]
    assert [start_s[code[1], 0, m] for m in (0, 1)] == [4.0, 7.5]


def of_type(trace, name, **where):
    """Start and end of the operations of a type, [ops] each, by seq_id."""
    chosen = trace.optype == OP_CODES[name]
    for column, value in where.items():
        chosen &= getattr(trace, column) == value
    ops = trace.select(chosen)
    return ops.start_s, ops.start_s + ops.duration_s


COMPUTE_ONLY = compute_only_costs(1.0, 2.0)


def test_sends_of_one_direction_leave_one_after_the_other():
    # A transfer takes longer than a computation: the second send waits for the first.
    costs = replace(COMPUTE_ONLY, stage_transfer_s=3.0)
    trace = SimulatedJob(Parallelism(1, 2), 2, costs=costs, schedule=SCHEDULES["gpipe"]).make([0])
    start_s, end_s = of_type(trace, "forward-send", stage=0)
    assert start_s.tolist() == [1.0, 4.0]
    assert end_s.tolist() == [4.0, 8.0]  # its receive is posted when the first forward has ended


def test_the_first_backward_receive_is_posted_one_computation_ahead():
    trace = SimulatedJob(Parallelism(1, 2), 3, costs=COMPUTE_ONLY).make([0])
    start_s, end_s = of_type(trace, "backward-recv", stage=0)
    # Stage 0 runs f0, f1, b0: posted when f0 has ended, given when stage 1 has ended its b0.
    assert (start_s[0], end_s[0]) == (1.0, 4.0)


def test_a_chunk_waits_for_its_own_parameters():
    costs = replace(COMPUTE_ONLY, params_all_gather_s=4.0)
    sizes = Parallelism(2, 1, vpp_size=2)
    made = SimulatedJob(sizes, 1, costs=costs, schedule=SCHEDULES["interleaved"])
    start_s, end_s = of_type(made.make([0]), "forward-compute", dp_rank=1)
    # Half a second each; the gathers end after 4 and 8.
    assert list(zip(start_s, end_s, strict=True)) == [(4.0, 4.5), (8.0, 8.5)]


def slow_transfers_into_chunk_1(drawn):
    drawn.forward_transfer_s[:, 1] = 5.0


def test_transfers_are_of_the_chunk_that_receives():
    made = SimulatedJob(
        Parallelism(1, 2, vpp_size=2),
        2,
        costs=COMPUTE_ONLY,
        schedule=SCHEDULES["interleaved"],
        faults=(CustomFault(slow_transfers_into_chunk_1),),
    )
    trace = made.make([0])
    for chunk, expected_s in ((0, 0.0), (1, 5.0)):
        received = trace.select((trace.optype == OP_CODES["forward-recv"]) & (trace.mc == chunk))
        sent = trace.select(trace.optype == OP_CODES["forward-send"])
        met_s = [
            max(start_s, sent.start_s[np.isclose(sent.start_s + sent.duration_s, end_s)].max())
            for start_s, end_s in zip(
                received.start_s, received.start_s + received.duration_s, strict=True
            )
        ]
        np.testing.assert_allclose(received.start_s + received.duration_s - met_s, expected_s)
