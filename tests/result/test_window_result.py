"""Every result is what its records say: nothing lost, nothing more, nothing of another type."""

import msgspec
import pytest
from hypothesis import given

from app.monitor import observe
from app.result.clock_times import in_clock_words
from app.result.join import joint_result
from app.result.stored import decode_result, split_by_step
from app.result.thin import thinned_result
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.interruptions import (
    AllocatorStalls,
    CheckpointStalls,
    CpuContention,
    DataLoading,
    GcPauses,
    JobStop,
)
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, SlowWorker, UniformSlowdown
from app.synth.faults.slow_network import SlowLink
from app.trace.readers.published import trace_files
from app.trace.window import SkippedStep
from tests.diagnosis.jobs import made, window_of
from tests.example_counts import many
from tests.job_strategies import windows
from tests.shared_traces import SHARED_TRACES, needs_shared
from tests.window_factory import window

FAULTS: dict[str, list[Fault]] = {
    "healthy": [],
    "slow worker": [SlowWorker(1, 2, 1.5)],
    "slow worker since step 9": [SlowWorker(1, 2, 1.5, when=FaultSteps(9))],
    "long last stage": [LongLastStage()],
    "sequence lengths": [SequenceImbalance()],
    "pauses": [GcPauses(rate=0.2)],
    "slow link": [SlowLink(1, 1, 40.0)],
    "data loading": [DataLoading("host-005", 0.3)],
    "allocator": [AllocatorStalls(((2, 1),), rate=0.3)],
    "uniform slowdown": [UniformSlowdown(1.4, when=FaultSteps(9))],
    "checkpoints": [CheckpointStalls(5, 2.0)],
    "stop": [JobStop(((1, 2),), when=FaultSteps(7))],
    "busy host": [CpuContention("host-005")],
}


def in_json(value):
    return msgspec.json.decode(msgspec.json.encode(value))


def as_typed(result):
    """The result as it is read from its JSON."""
    return decode_result(msgspec.json.encode(result))


def assert_is_typed(result):
    assert in_json(as_typed(result)) == in_json(result)


def all_forms(result):
    """The result by itself, as one of several windows, when it is old, and as it is read."""
    whole = split_by_step(result)[0]
    joint = joint_result([whole, whole])
    return [
        result,
        joint_result([result, result]),
        joint,
        thinned_result([whole, whole], "hour", whole),
        joint_result([thinned_result([whole, whole], "hour", whole), whole]),
        in_clock_words(joint, 1.8e9),
    ]


@pytest.mark.parametrize("name", FAULTS)
def test_the_results_of_a_fault_are_what_their_records_say(name):
    for result in all_forms(observe(window_of(made(*FAULTS[name]))).result):
        assert_is_typed(result)


@many(40)
@given(windows())
def test_the_result_of_any_window_is_what_its_records_say(a_window):
    assert_is_typed(observe(a_window).result)


def test_a_result_without_figures_is_what_its_records_say():
    skipped = (SkippedStep(7, "worker 3 did not report", (3,)),)
    empty = window([], state="incomplete", skipped=skipped)
    assert_is_typed(observe(empty).result)


@needs_shared
def test_the_results_of_published_traces_are_what_their_records_say():
    for path in sorted(SHARED_TRACES.glob("trace-*.parquet")):
        for result in all_forms(observe(trace_files.read(path)).result):
            assert_is_typed(result)


def test_a_field_that_the_records_lack_is_found():
    result = observe(window_of(made())).result
    with pytest.raises(msgspec.ValidationError, match=r"got `str` - at `\$\.m_w`"):
        as_typed(result.as_json() | {"m_w": "much"})
    lacking = {name: value for name, value in result.as_json().items() if name != "steps"}
    with pytest.raises(msgspec.ValidationError, match="missing required field `steps`"):
        as_typed(lacking)
