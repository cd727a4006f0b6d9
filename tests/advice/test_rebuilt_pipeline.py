from dataclasses import replace

import numpy as np
import pytest

from app.advice.other_schedule import with_chunks, with_split_backward
from app.advice.rebuilt_pipeline import RebuiltPipeline, rebuilt_pipeline
from app.advice.recorded_pipeline import NotRebuilt, RecordedPipeline, recorded_pipeline
from app.engine.replays import WindowReplay, prepare
from app.synth.costs import OperationCosts
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.faults.slow_network import SlowNic
from app.synth.job import SimulatedJob
from app.synth.schedules import SCHEDULES
from app.trace.job import Job, Parallelism
from app.trace.ops import parse_op_types
from app.trace.readers.published import trace_files
from app.trace.window import Window
from tests.shared_traces import SHARED_TRACES, needs_shared


def replay_of(job: SimulatedJob, steps: int = 6) -> WindowReplay:
    return prepare(job.record(range(steps)).window())


def model_of(job: SimulatedJob, steps: int = 6) -> RebuiltPipeline:
    found = rebuilt_pipeline(replay_of(job, steps).groups)
    assert isinstance(found, RebuiltPipeline), found
    return found


SHAPES = [
    ("1f1b", Parallelism(3, 4, 8), 8),
    ("gpipe", Parallelism(2, 4, 8), 6),
    ("interleaved", Parallelism(2, 4, 8, 2), 8),
    ("zero-bubble", Parallelism(2, 4, 8), 8),
    ("1f1b", Parallelism(4, 1, 8), 5),
    ("1f1b", Parallelism(1, 4, 8), 5),
]


@pytest.mark.parametrize(("name", "sizes", "count"), SHAPES)
def test_rebuilt_job_takes_as_long_as_the_replay(name, sizes, count):
    faults = (SlowWorker(0, sizes.pp_size - 1, 1.6), SlowNic(0, 0, 10.0))
    job = SimulatedJob(sizes, count, schedule=SCHEDULES[name], faults=faults)
    model = model_of(job)
    assert model.recorded.schedule.name == name
    assert model.num_microbatches == count
    assert model.as_is_s == pytest.approx(model.group.simulated_s, rel=1e-3)


def test_rebuilt_job_follows_uneven_sequences():
    model = model_of(SimulatedJob(Parallelism(4, 2, 8), 8, faults=(SequenceImbalance(),)))
    assert model.as_is_s == pytest.approx(model.group.simulated_s, rel=1e-3)


def test_equal_counts_are_the_job_as_it_is():
    model = model_of(SimulatedJob(Parallelism(3, 2, 8), 6))
    np.testing.assert_allclose(model.with_counts([6, 6, 6]).step_s(), model.as_is_s)


COUNTS = [6 if rank == 3 else 9 if rank in (7, 8) else 8 for rank in range(64)]


@pytest.mark.parametrize(
    "other",
    [
        lambda model: model.counts_s(COUNTS),
        lambda model: with_split_backward(model.as_is(), 0.5).step_s(),
        lambda model: with_chunks(model.as_is(), np.full((4, 4), 0.25)).step_s(),
    ],
    ids=["counts", "zero-bubble", "interleaved"],
)
@pytest.mark.parametrize("faults", [(), (SequenceImbalance(),)], ids=["even", "uneven"])
def test_few_replicas_predict_within_half_a_point(other, faults):
    faults = (SlowWorker(3, 1, 1.4), *faults)
    model = model_of(SimulatedJob(Parallelism(64, 4, 8), 8, faults=faults), steps=8)
    few = replace(model, max_ops=1)
    assert few.as_is().dp_ranks.shape == (8, 8)
    assert model.as_is().dp_ranks.shape == (8, 64)
    exact, quick = (other(each).mean() / each.as_is_s.mean() for each in (model, few))
    assert 100 * abs(exact - quick) < 0.5


def test_shuffled_order_is_no_known_schedule():
    group = replay_of(SimulatedJob(Parallelism(2, 2, 8), 6)).groups[0]
    template = group.template
    mb_id = template.mb_id.copy()
    computes = template.computes[0]
    mb_id[computes[0]], mb_id[computes[1]] = mb_id[computes[1]], mb_id[computes[0]]
    grid = replace(group.grid, template=replace(template, mb_id=mb_id))
    found = recorded_pipeline(replace(group, grid=grid))
    assert isinstance(found, NotRebuilt)
    assert found.reason == (
        "the order of its computations is none of gpipe, 1f1b, interleaved, zero-bubble"
    )


def test_own_operations_cannot_be_rebuilt():
    recorded = SimulatedJob(Parallelism(2, 2, 8), 4).record(range(4)).window()
    types = parse_op_types([{"name": "router", "kind": "compute", "axis": "none"}])
    trace = recorded.trace
    optype = trace.optype.copy()
    optype[optype == types.codes["gc"]] = types.codes["router"]
    job = Job.of("own", recorded.job.parallelism, types)
    window: Window = replace(recorded, job=job, trace=replace(trace, optype=optype))
    found = rebuilt_pipeline(prepare(window).groups)
    assert found == NotRebuilt("operations of type router have no place in a rebuilt pipeline")


def test_other_durations_than_the_replays_are_refused():
    group = replay_of(SimulatedJob(Parallelism(2, 2, 8), 4)).groups[0]
    found = recorded_pipeline(group)
    assert isinstance(found, RecordedPipeline)
    slower = np.array(group.durations.recorded_s)
    slower[found.group.template.of_stage[0]["forward-send"]] += 0.5
    changed = replace(group, durations=replace(group.durations, recorded_s=slower))
    refused = rebuilt_pipeline([changed])
    assert isinstance(refused, NotRebuilt)
    assert "no prediction is made above 3% difference" in refused.reason


def test_costs_of_a_microbatch_are_those_of_the_longest_stage():
    costs = OperationCosts(noise=0.0, stage_factors=(1.0, 2.0))
    model = model_of(SimulatedJob(Parallelism(2, 2, 8), 4, costs=costs))
    assert model.microbatch_s == pytest.approx([0.12, 0.12])
    assert model.fill_s == pytest.approx([0.06, 0.06])


@needs_shared
@pytest.mark.parametrize(
    ("trace", "name", "count"),
    [
        ("AR", "1f1b", 32),
        ("ST", "1f1b", 4),
        ("inter", "interleaved", 6),
        ("puredp", "1f1b", 4),
        ("purepp", "1f1b", 16),
    ],
)
def test_published_traces_are_rebuilt_within_one_percent(trace, name, count):
    window = trace_files.read(SHARED_TRACES / f"trace-{trace}.parquet")
    model = rebuilt_pipeline(prepare(window).groups)
    assert isinstance(model, RebuiltPipeline)
    assert (model.recorded.schedule.name, model.num_microbatches) == (name, count)
    assert model.as_is_s.mean() == pytest.approx(model.group.simulated_s.mean(), rel=0.01)


@needs_shared
def test_overlapped_gradients_cannot_be_rebuilt():
    window = trace_files.read(SHARED_TRACES / "trace-ovlp.parquet")
    found = rebuilt_pipeline(prepare(window).groups)
    assert isinstance(found, NotRebuilt)
    assert "separate-grads-all-reduce" in found.reason
