from dataclasses import dataclass, replace

import numpy as np
import pytest
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.uniform_slowdown import UniformSlowdown
from app.diagnosis.evidence.job_changes import compute_per_work
from app.diagnosis.job_history import ExtendedHistory, History, onset_in_history
from app.diagnosis.suspicions import suspicion_costs
from app.result.finding import RuledOut
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.interruptions import PlannedGc
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import LongLastStage, SlowStage, SlowWorker, ThrottlingGpu
from app.synth.faults.slow_compute import UniformSlowdown as EverybodySlower
from app.synth.faults.slow_network import SlowDpGroup
from app.synth.job import SimulatedJob
from app.synth.normal_variation import SpecialSteps
from app.trace.job import Parallelism
from app.trace.window import Floats
from tests.diagnosis.suspects import denied, fact_of, suspected
from tests.diagnosis.windows import case_of, cases, made_window

HEALTHY = SimulatedJob(Parallelism(4, 2), 4, seed=5)
SINCE_20 = FaultSteps(20)
UNIFORM = UniformSlowdown()


def having(*faults: Fault) -> SimulatedJob:
    return replace(HEALTHY, faults=faults)


def detect(case: Case) -> Suspicion | RuledOut:
    return UNIFORM.detect(case)


def test_uniform_slowdown_has_onset_ratio_and_cost():
    made = having(EverybodySlower(slowdown=1.3, when=SINCE_20))
    case = cases(made, 32)[-1]
    found = suspected(UNIFORM, case)
    assert (found.culprits, found.onset.onset_step) == ((), 20)
    assert found.evidence["compute_ratio"] == pytest.approx(1.3, rel=0.01)
    assert found.evidence["optimizer_ratio"] == pytest.approx(1.3, rel=0.02)
    assert found.evidence["slowdown"] == pytest.approx(case.report.slowdown)
    assert found.evidence["steps"] == list(range(24, 32))
    assert found.badness is not None
    assert onset_in_history(case.extended_history, found.badness).persistence == "chronic"
    healthy_s = case_of(made_window(HEALTHY, 24)).report.simulated_s.mean()
    real = 1 - healthy_s / case.report.simulated_s.mean()
    assert suspicion_costs(case, [found]).of(0) == pytest.approx(real, abs=0.01)
    assert fact_of(found) == (
        "every worker's forward and backward computations take 1.3x as long as before"
    )


def test_cost_in_the_onset_window_is_that_of_its_slow_steps():
    made = having(EverybodySlower(slowdown=1.3, when=SINCE_20))
    case = cases(made, 24)[-1]
    found = suspected(UNIFORM, case)
    healthy_s = case_of(made_window(HEALTHY, 16)).report.simulated_s.mean()
    real = 1 - healthy_s / case.report.simulated_s.mean()
    assert suspicion_costs(case, [found]).of(0) == pytest.approx(real, abs=0.01)


def test_uniform_slowdown_is_found_while_it_lasts():
    made = having(EverybodySlower(slowdown=1.3, when=FaultSteps(20, 28)))
    answers = [detect(case) for case in cases(made, 64)]
    named = [isinstance(answer, Suspicion) for answer in answers]
    # In window 48 to 55 steps are as they were before.
    assert named == [False, False, True, True, True, True, False, False]


@pytest.mark.parametrize(
    "fault",
    [
        SlowWorker(1, 0, 1.8, when=SINCE_20),
        LongLastStage(when=SINCE_20),
        SlowDpGroup(stage=1, slowdown=6.0, when=SINCE_20),
    ],
    ids=["a worker", "a stage", "a dp group"],
)
def test_a_fault_of_some_workers_is_no_uniform_slowdown(fault):
    assert [case for case in cases(having(fault), 40) if isinstance(detect(case), Suspicion)] == []


def test_uniform_slowdown_is_found_beside_a_slow_worker():
    faults = SlowWorker(1, 0, 1.5), EverybodySlower(slowdown=1.25, when=SINCE_20)
    found = suspected(UNIFORM, cases(having(*faults), 32)[-1])
    assert found.evidence["compute_ratio"] == pytest.approx(1.25, rel=0.01)


@pytest.mark.parametrize(
    "other",
    [
        SlowWorker(1, 0, 1.6, when=FaultSteps(26)),
        ThrottlingGpu(1, 0, 1.9, when=FaultSteps(17)),
        SequenceImbalance(when=FaultSteps(26)),
        SequenceImbalance(when=FaultSteps(26), is_sent=True),
    ],
    ids=["a worker", "throttling", "lengths", "lengths that are told from then on"],
)
def test_uniform_slowdown_is_found_beside_a_fault_of_another_onset(other):
    faults = other, EverybodySlower(slowdown=1.3, when=SINCE_20)
    found = suspected(UNIFORM, cases(having(*faults), 40)[-1])
    assert found.onset.onset_step == 20
    assert found.evidence["compute_ratio"] == pytest.approx(1.3, rel=0.1)


@pytest.mark.parametrize(
    "other",
    [
        SlowWorker(1, 0, 1.6, when=SINCE_20),
        ThrottlingGpu(1, 0, 1.9, when=SINCE_20),
        SequenceImbalance(when=SINCE_20),
        SequenceImbalance(when=SINCE_20, is_sent=True),
        PlannedGc(every_steps=2, pause_s=0.6, when=SINCE_20),
    ],
    ids=["a worker", "throttling", "lengths", "lengths that are told from then on", "gc"],
)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 2))]
)
def test_a_fault_alone_is_no_uniform_slowdown(other, seed):
    made = replace(having(other), seed=seed)
    assert [case for case in cases(made, 40) if isinstance(detect(case), Suspicion)] == []


def test_a_slow_worker_onset_is_no_uniform_slowdown():
    found = denied(UNIFORM, cases(having(SlowWorker(1, 0, 1.8, when=SINCE_20)), 32)[-1])
    assert "since step 20, but not because all workers got slower alike" in found.reason


def test_odd_steps_are_no_uniform_slowdown():
    odd = SpecialSteps(num_first=1, evaluate_every=9, checkpoint_every=12)
    for case in cases(replace(HEALTHY, odd_steps=odd), 48):
        assert isinstance(detect(case), RuledOut)


def test_too_few_steps_give_insufficient_evidence():
    found = denied(UNIFORM, case_of(made_window(having(EverybodySlower(slowdown=2.0)), 0, 5)))
    assert found.insufficient
    assert "only 5 steps" in found.reason


def test_one_worker_gives_insufficient_evidence():
    alone = replace(
        having(EverybodySlower(slowdown=2.0, when=SINCE_20)), parallelism=Parallelism(1, 1)
    )
    found = denied(UNIFORM, cases(alone, 32)[-1])
    assert found.insufficient


def test_garbage_collection_is_no_part_of_once_s():
    paused, healthy = (case_of(made_window(made, 0)) for made in (having(PlannedGc(2)), HEALTHY))
    assert paused.signals["once_s"] == pytest.approx(healthy.signals["once_s"])


def test_unknown_work_counts_as_usual():
    rng = np.random.default_rng(3)
    tokens = rng.uniform(1.0, 2.0, (20, 2, 2))
    took_s = 0.5 * tokens
    took_s[:8] = 0.75
    tokens[:8] = np.nan
    tokens[12, :, 1] = np.nan  # one stage does not: it is taken to have what the other has
    steps = np.arange(20)
    found = compute_per_work(
        ExtendedHistory(steps, np.ones(20), {"compute_s": took_s, "tokens": tokens}, 0)
    )
    assert found is not None
    assert found[:8] == pytest.approx(0.75)
    known = np.isfinite(tokens)
    assert np.ptp(found[known]) == pytest.approx(0.0, abs=1e-9)
    of_others = took_s[12, :, 1] / (took_s[12, :, 0] / found[12, :, 0]).mean()
    assert found[12, :, 1] == pytest.approx(of_others)


def test_more_work_is_no_slowdown():
    # Only computations take longer: what the optimizer does is the same for more tokens.
    made = having(*(SlowStage(stage, 1.4, when=SINCE_20) for stage in (0, 1)))
    assert isinstance(detect(with_work(made, 1.0)), Suspicion)
    assert isinstance(detect(with_work(made, 1.4)), RuledOut)


def with_work(made: SimulatedJob, ratio: float) -> Case:
    """The last window of a job that tells its tokens, so many times as many from step 20 on."""
    history = History()
    for first in range(0, 32, 8):
        window = made_window(made, first)
        trace = window.trace
        tokens = np.where(trace.step >= 20, 4096 * ratio, 4096).astype(np.int64)
        case = case_of(replace(window, trace=replace(trace, tokens=tokens)), history)
        history = history.extended(case.new_history)
    return case


@dataclass(frozen=True, slots=True)
class EverybodySlowsDown(EverybodySlower):
    """Everybody gets slower from step to step: `slowdown` after `ramp_steps`."""

    ramp_steps: int = 20

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        share = np.clip((drawn.steps - self.when.first_step + 1) / self.ramp_steps, 0.0, 1.0)
        factor = (1 + (self.slowdown - 1) * share)[:, None]
        drawn.forward_s *= factor
        drawn.backward_s *= factor
        drawn.once_s["optimizer"] *= factor


@pytest.mark.parametrize("window_steps", [8, 40])
@pytest.mark.parametrize("seed", range(2))
def test_a_ramp_of_everybody_is_a_progressive_uniform_slowdown(window_steps, seed):
    made = replace(having(EverybodySlowsDown(slowdown=1.3, when=SINCE_20)), seed=seed)
    case = cases(made, 40, window_steps)[-1]
    found = suspected(UNIFORM, case)
    assert found.onset.onset_step is not None
    assert abs(found.onset.onset_step - 20) <= 2
    assert found.onset.persistence == "progressive"
    assert found.evidence["compute_ratio"] == pytest.approx(1.3, rel=0.05)
    assert "longer and longer, by now 1.3x as long as before" in fact_of(found)


@pytest.mark.parametrize("window_steps", [10, 40])
def test_a_ramp_of_everybody_from_the_first_step_has_no_onset(window_steps):
    made = having(EverybodySlowsDown(slowdown=1.3, ramp_steps=40))
    found = suspected(UNIFORM, cases(made, 40, window_steps)[-1])
    assert (found.onset.onset_step, found.onset.persistence) == (None, "progressive")
    assert np.isfinite(found.evidence["step_time_before_s"])
    assert np.isfinite(found.evidence["compute_before_s"])
    assert "by now 1.3x as long as in the first steps" in fact_of(found)


def test_cost_of_a_ramp_of_everybody_matches_the_counterfactual():
    made = having(EverybodySlowsDown(slowdown=1.3, when=SINCE_20))
    case = cases(made, 40, 40)[-1]
    found = suspected(UNIFORM, case)
    healthy_s = case_of(made_window(HEALTHY, 0, 40)).report.simulated_s.mean()
    real = 1 - healthy_s / case.report.simulated_s.mean()
    assert suspicion_costs(case, [found]).of(0) == pytest.approx(real, abs=0.01)


def test_a_ramp_that_ended_long_ago_is_chronic():
    made = having(EverybodySlowsDown(slowdown=1.3, ramp_steps=8, when=SINCE_20))
    found = suspected(UNIFORM, cases(made, 64)[-1])
    assert found.onset.persistence == "chronic"
