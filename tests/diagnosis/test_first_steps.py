"""The first steps of a run are known to be long, and are no evidence for any cause."""

from dataclasses import replace

import numpy as np
import pytest
from typing_extensions import override

from app.advice.facts import Facts
from app.diagnosis.first_steps import FirstSteps, begins_run, first_steps, judged_replay
from app.diagnosis.job_history import History
from app.engine.replays import prepare
from app.monitor import Observation, observe, stored_advice_case
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.interruptions import JobStop, PlannedGc
from app.synth.faults.slow_compute import SlowWorker, UniformSlowdown
from app.trace.window import Floats, Window
from tests.diagnosis.jobs import made, window_of

WARM_UP = UniformSlowdown(3.0, when=FaultSteps(0, 3))


def recorded(*faults: Fault, num_steps: int = 16, first: int = 0) -> Window:
    return window_of(made(*faults, pp=2), num_steps, first)


def left_out(window: Window) -> FirstSteps | None:
    return first_steps(prepare(window))


def named(seen: Observation) -> list[str]:
    return [finding.cause for finding in seen.result.findings or ()]


@pytest.mark.parametrize("num_steps", [8, 12, 16, 40])
def test_first_steps_are_left_out_and_their_cost_is_said_once(num_steps):
    seen = observe(recorded(WARM_UP, num_steps=num_steps))
    assert named(seen) == []
    [fact] = [fact for fact in seen.result.observations or () if fact.kind == "first-steps"]
    assert fact.sentence.startswith("The first 3 steps of the run took")
    recorded_s = np.array(seen.result.step_time_s.recorded)
    lost_s = (recorded_s[:3] - np.median(recorded_s[3:])).sum()
    assert fact.share == pytest.approx(lost_s / recorded_s.sum(), abs=0.005)
    assert seen.recent is not None
    assert seen.recent.steps[0] == 3, "later windows compare with what followed"
    assert len(seen.result.steps) == num_steps, "figures are of all steps"


def test_warm_up_that_fades_is_left_out_to_its_end():
    fading = [UniformSlowdown(1 + 2.0 / 3**step, when=FaultSteps(step, 1)) for step in range(4)]
    found = left_out(recorded(*fading))
    assert found is not None
    assert found.number == 4


def test_a_fault_from_the_first_step_on_is_found_as_without_warm_up():
    slow = SlowWorker(1, 1, 1.5)
    without = observe(recorded(slow)).result.findings or ()
    seen = observe(recorded(WARM_UP, slow)).result.findings or ()
    assert [finding.culprits for finding in seen] == [finding.culprits for finding in without]
    assert seen[0].cost == pytest.approx(without[0].cost, abs=0.02)
    assert seen[0].onset_step is None


def test_slow_first_steps_of_one_worker_are_a_fault():
    assert left_out(recorded(SlowWorker(1, 1, 3.0, when=FaultSteps(0, 5)))) is None


def test_what_comes_again_is_no_warm_up():
    every_four = PlannedGc(every_steps=4, pause_s=2.0)
    assert left_out(recorded(every_four)) is None
    assert left_out(recorded(WARM_UP, UniformSlowdown(3.0, when=FaultSteps(9, 3)))) is None


def test_more_than_ten_slow_steps_are_none():
    assert left_out(recorded(UniformSlowdown(2.0, when=FaultSteps(0, 12)), num_steps=30)) is None


def test_only_the_begin_of_a_run_is_known_to_be_slow():
    begin, later = prepare(recorded()), prepare(recorded(first=100))
    assert begins_run(begin, has_history=False)
    assert not begins_run(begin, has_history=True)
    assert not begins_run(later, has_history=False)
    resumed = replace(later, window=replace(later.window, epoch=2))
    assert begins_run(resumed, has_history=False), "after a restart from a checkpoint"


def test_fixes_of_a_stored_result_are_of_the_steps_that_were_judged():
    window = recorded(WARM_UP, SlowWorker(1, 1, 1.5))
    case = stored_advice_case(prepare(window), observe(window).result, Facts())
    assert case.replay.steps == window.steps[3:]
    [finding] = case.result.findings or ()
    repair = case.repair(finding.cause)
    assert repair is not None
    assert repair(case.replay.groups[0]).rows.size


def test_nothing_is_left_out_of_a_later_window():
    window = recorded(WARM_UP)
    history = History(np.arange(-8, 0), np.ones(8))
    assert observe(window, history).recent is not None
    replay, first = judged_replay(prepare(recorded()))
    assert first is None
    assert replay.steps == tuple(range(16))


class Compiles(UniformSlowdown):
    """The first forward of each stage takes longer; the next stage waits for it."""

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        drawn.forward_s[:, :, 0] *= np.where(lasts > 0, self.slowdown, 1.0)[:, None]


def test_compilation_that_passes_from_stage_to_stage_is_left_out():
    found = left_out(window_of(made(Compiles(20.0, when=FaultSteps(0, 1)), pp=4, microbatches=4)))
    assert found is not None
    assert found.number == 1


def test_a_stop_of_one_worker_in_the_first_step_is_no_warm_up():
    assert left_out(recorded(JobStop(((1, 1),), 2.0, when=FaultSteps(0)))) is None
