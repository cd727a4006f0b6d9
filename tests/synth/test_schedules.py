from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES, ComputeKind
from app.trace.job import Parallelism
from tests.example_counts import many
from tests.synth.faulty_jobs import compute_only_costs

LETTERS = {
    ComputeKind.FORWARD: "f",
    ComputeKind.BACKWARD: "b",
    ComputeKind.BACKWARD_INPUT: "i",
    ComputeKind.BACKWARD_WEIGHT: "w",
}


def words(name, stage, *, pp_size, num_microbatches, num_chunks=1):
    """Like "f0.1": forward of micro-batch 0 through chunk 1; chunk 0 is not said."""
    sizes = Parallelism(1, pp_size, vpp_size=num_chunks)
    order = SCHEDULES[name].order(stage, sizes, num_microbatches)
    chunk = {work: f".{work.chunk}" if work.chunk else "" for work in order}
    return " ".join(f"{LETTERS[work.part]}{work.microbatch}{chunk[work]}" for work in order)


def step_s(name, pp_size, num_microbatches, *, num_chunks=1, weight_share=0.5, dp_size=1):
    costs = replace(compute_only_costs(1.0, 2.0), weight_share=weight_share)
    sizes = Parallelism(dp_size, pp_size, vpp_size=num_chunks)
    made = SimulatedJob(sizes, num_microbatches, costs=costs, schedule=SCHEDULES[name])
    trace = made.make([0])
    return float((trace.start_s + trace.duration_s).max())


def test_gpipe_runs_all_forwards_first_and_takes_chunks_back_to_front():
    assert words("gpipe", 0, pp_size=2, num_microbatches=3) == "f0 f1 f2 b0 b1 b2"
    two_chunks = words("gpipe", 1, pp_size=2, num_microbatches=2, num_chunks=2)
    assert two_chunks == "f0 f1 f0.1 f1.1 b0.1 b1.1 b0 b1"


def test_1f1b_alternates_after_a_head_start_of_each_stage():
    assert words("1f1b", 0, pp_size=3, num_microbatches=4) == "f0 f1 f2 b0 f3 b1 b2 b3"
    assert words("1f1b", 1, pp_size=3, num_microbatches=4) == "f0 f1 b0 f2 b1 f3 b2 b3"
    assert words("1f1b", 2, pp_size=3, num_microbatches=4) == "f0 b0 f1 b1 f2 b2 f3 b3"
    assert words("1f1b", 0, pp_size=4, num_microbatches=2) == "f0 f1 b0 b1"


def test_interleaved_deals_out_rounds_of_one_microbatch_a_stage():
    last = words("interleaved", 1, pp_size=2, num_microbatches=4, num_chunks=2)
    # As many ahead as a round of the first chunk; then the last chunk's backwards come first.
    assert last == ("f0 f1 f0.1 b0.1 f1.1 b1.1 f2 b0 f3 b1 f2.1 b2.1 f3.1 b3.1 b2 b3")
    first = words("interleaved", 0, pp_size=2, num_microbatches=4, num_chunks=2)
    assert first == ("f0 f1 f0.1 f1.1 f2 b0.1 f3 b1.1 f2.1 b0 f3.1 b1 b2.1 b3.1 b2 b3")


def test_zero_bubble_puts_off_its_weights_the_longer_the_deeper_the_stage():
    assert words("zero-bubble", 0, pp_size=2, num_microbatches=3) == "f0 f1 i0 w0 f2 i1 w1 i2 w2"
    assert words("zero-bubble", 1, pp_size=2, num_microbatches=3) == "f0 i0 f1 i1 w0 f2 i2 w1 w2"


@pytest.mark.parametrize("name", SCHEDULES)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 12), st.data())
@many(60)
def test_every_computation_is_done_once_and_forwards_come_first(
    name, pp_size, num_chunks, count, data
):
    schedule = SCHEDULES[name]
    num_chunks = num_chunks if schedule.has_chunks else 1
    count *= pp_size if num_chunks > 1 else 1
    stage = data.draw(st.integers(0, pp_size - 1))
    order = schedule.order(stage, Parallelism(1, pp_size, vpp_size=num_chunks), count)
    assert len(set(order)) == len(order)
    parts = 3 if name == "zero-bubble" else 2
    assert len(order) == parts * count * num_chunks
    position = {work: at for at, work in enumerate(order)}
    for work in order:
        before = {
            ComputeKind.BACKWARD: ComputeKind.FORWARD,
            ComputeKind.BACKWARD_INPUT: ComputeKind.FORWARD,
            ComputeKind.BACKWARD_WEIGHT: ComputeKind.BACKWARD_INPUT,
        }.get(work.part)
        assert before is None or position[work._replace(part=before)] < position[work]


SHAPES = [(1, 1), (2, 1), (2, 4), (4, 4), (4, 9), (5, 3), (8, 16)]


@pytest.mark.parametrize(("pp_size", "count"), SHAPES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_bubble_of_one_chunk_a_stage(name, pp_size, count):
    bubble = 1 - count * 3.0 / step_s(name, pp_size, count)
    assert bubble == pytest.approx((pp_size - 1) / (count + pp_size - 1), abs=1e-12)


@pytest.mark.parametrize("num_chunks", [1, 2, 4])
@pytest.mark.parametrize(("pp_size", "rounds"), [(2, 1), (2, 3), (4, 1), (4, 2), (8, 2)])
def test_the_bubble_shrinks_with_the_chunks(pp_size, rounds, num_chunks):
    count = pp_size * rounds
    bubble = 1 - count * 3.0 / step_s("interleaved", pp_size, count, num_chunks=num_chunks)
    shrunk = (pp_size - 1) / (count * num_chunks + pp_size - 1)
    assert bubble == pytest.approx(shrunk, abs=1e-12)


@pytest.mark.parametrize("weight_share", [0.25, 0.5])
@pytest.mark.parametrize(("pp_size", "count"), [(2, 2), (3, 4), (4, 4), (4, 16), (8, 8)])
def test_weights_fill_the_gaps_of_zero_bubble(pp_size, count, weight_share):
    # (p - 1) (F + B - W) idle seconds (Qi et al., table 2), F = 1 and B + W = 2.
    weight_s = 2.0 * weight_share
    idle_s = (pp_size - 1) * (1.0 + (2.0 - weight_s) - weight_s)
    zero_bubble_s = step_s("zero-bubble", pp_size, count, weight_share=weight_share)
    assert zero_bubble_s == pytest.approx(count * 3.0 + idle_s, abs=1e-12)
    assert zero_bubble_s < step_s("1f1b", pp_size, count)


@pytest.mark.parametrize("name", ["1f1b", "zero-bubble"])
def test_several_chunks_want_a_schedule_that_has_a_place_for_them(name):
    with pytest.raises(InvalidRequest, match="set vpp_size to 1"):
        SimulatedJob(Parallelism(1, 2, vpp_size=2), 2, schedule=SCHEDULES[name])


def test_interleaving_wants_whole_rounds():
    with pytest.raises(InvalidRequest, match="rounds of 4"):
        SimulatedJob(Parallelism(1, 4, vpp_size=2), 6, schedule=SCHEDULES["interleaved"])
