"""Slow workers that recover, come and go, grow, or take turns."""

from dataclasses import dataclass

import numpy as np
import pytest
from typing_extensions import override

from app.diagnosis.job_history import History
from app.result.finding import Finding
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault, FaultSteps, scale_worker
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.window import Floats
from tests.diagnosis.jobs import diagnosed, findings_of, made, window_of


@dataclass(frozen=True, slots=True)
class OnAndOff(SlowWorker):
    """Slow for some steps, then as usual for some, again and again."""

    on: int = 4
    off: int = 3

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        turn = (drawn.steps - self.when.first_step) % (self.on + self.off)
        factor = np.where((turn < self.on) & (lasts > 0), self.slowdown, 1.0)
        scale_worker(drawn, self.dp_rank, self.stage, factor)


@dataclass(frozen=True, slots=True)
class InTurn(SlowWorker):
    """Other workers are slow in turn, `dwell` steps each: first `dp_rank`, then the next ones."""

    dwell: int = 1
    count: int = 4

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        turn = drawn.steps // self.dwell % self.count
        for each in range(self.count):
            factor = np.where((turn == each) & (lasts > 0), self.slowdown, 1.0)
            scale_worker(drawn, self.dp_rank + each, self.stage, factor)


def only(*faults: Fault, num_steps: int = 40, **about) -> Finding:
    (found,) = findings_of(diagnosed(window_of(a_job(*faults, **about), num_steps)))
    return found


def a_job(*faults: Fault, dp: int = 6, pp: int = 2, **about) -> SimulatedJob:
    return made(*faults, dp=dp, pp=pp, microbatches=4, **about)


def test_a_recovered_worker_was_slow_from_onset_to_end():
    found = only(SlowWorker(1, 1, 1.8, when=FaultSteps(12, 14)))
    assert (found.onset_step, found.end_step, found.persistence) == (12, 25, "transient")
    assert found.as_json()["end_step"] == 25
    fact, cost = found.sentence.split("; ")
    assert fact.endswith(
        " was 1.8x slower than its peers in forward and backward, from step 12 to step 25"
    )
    assert cost.startswith("it cost ")


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_comes_and_goes_is_transient_at_its_true_cost(seed):
    fault = OnAndOff(1, 1, 1.8, when=FaultSteps(5))
    found = only(fault, seed=seed)
    assert (found.onset_step, found.end_step, found.persistence) == (5, None, "transient")
    slow_s, healthy_s = (
        np.mean(step_times(a_job(*faults, seed=seed))) for faults in ((fault,), ())
    )
    assert found.cost == pytest.approx(1 - healthy_s / slow_s, abs=0.01)


def step_times(job: SimulatedJob) -> Floats:
    record = job.record(range(40))
    ends = record.start_ns + record.duration_ns
    return np.array(
        [
            (ends[record.step == step].max() - record.start_ns[record.step == step].min()) * 1e-9
            for step in range(40)
        ]
    )


@pytest.mark.parametrize("dwell", [1, 2, 4])
def test_workers_that_are_slow_in_turn_are_rotating(dwell):
    found = only(InTurn(1, 1, 1.6, dwell=dwell))
    assert found.persistence == "rotating"
    assert {(each.dp_rank, each.stage) for each in found.culprits} == {(n, 1) for n in range(1, 5)}
    assert found.sentence.startswith("Another worker is slow each time: in turn ")


def test_workers_that_are_slow_at_once_are_not_rotating():
    found = only(SlowWorker(1, 1, 1.6), SlowWorker(2, 1, 1.5), SlowWorker(3, 0, 1.55))
    assert found.persistence == "chronic"


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_uneven_sequences_are_no_workers_in_turn(pp, microbatches):
    job = made(SequenceImbalance(), dp=6, pp=pp, microbatches=max(pp, microbatches))
    found = findings_of(diagnosed(window_of(job, 40)))
    assert "slow-worker" not in {each.cause for each in found}


def test_a_later_window_knows_the_onset_of_pauses_by_the_windows_before():
    job = a_job(GcPauses(rate=0.2, when=FaultSteps(20)))
    history, onsets = History(), []
    for first in range(0, 64, 16):
        seen = diagnosed(window_of(job, 16, first), history)
        history = history.extended(seen.new_history)
        onsets.append([each.onset_step for each in findings_of(seen) if each.cause == "gc-pause"])
    assert onsets[0] == []
    assert onsets[1:] == [onsets[1]] * 3
    assert onsets[1][0] in range(20, 23)


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_worker_that_is_slow_every_so_many_steps_is_said_with_the_period(every):
    slow = OnAndOff(1, 1, 1.6, on=1, off=every - 1)
    [found] = findings_of(diagnosed(window_of(made(slow), 24)))
    assert (found.cause, found.persistence) == ("slow-worker", "transient")
    assert found.evidence["every_steps"] == every
    assert found.evidence["slowdown_against_peers"] == pytest.approx(1.6, abs=0.05)
    ordinal = {2: "2nd", 3: "3rd", 5: "5th"}[every]
    assert f"is 1.6x slower than its peers in forward and backward, in every {ordinal} step" in (
        found.sentence
    )
