from dataclasses import replace

import pytest
from msgspec import structs

from app.advice.advise import METHODS, advice_record, advise, top_fix
from app.advice.fix import AdviceCase, Elapsed
from app.synth.faults.fault import Fault
from app.synth.faults.slow_compute import SlowWorker
from app.synth.faults.slow_network import SlowNic
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import NUM_STEPS, case_of, simulated_step_s

JOB = SimulatedJob(Parallelism(4, 4, 8), 16)


def with_fault(*faults: Fault) -> AdviceCase:
    return case_of(replace(JOB, faults=faults))


def test_largest_gain_comes_first_and_others_say_why_not():
    case = with_fault(SlowWorker(2, 1, 1.3), SlowNic(1, 2, 40.0))
    advice = advise(case)
    assert {each.name for each in advice.fixes if each.cause} == {"replace-worker", "repair-link"}
    gains = [each.gpu_hours_per_day for each in advice.fixes]
    assert gains == sorted(gains, reverse=True)
    answered = [each.name for each in advice.fixes]
    answered += [each.name for each in advice.not_offered]
    assert sorted(answered) == sorted(each.name for each in METHODS)
    assert all(each.reason for each in advice.not_offered)


def test_far_replay_gives_no_advice():
    case = with_fault(SlowWorker(2, 1, 1.6))
    far = structs.replace(case.result.fidelity, discrepancy=0.2, verdict="low")
    advice = advise(replace(case, result=structs.replace(case.result, fidelity=far)))
    assert advice.fixes == ()
    assert advice.withheld is not None
    assert "too far from the record" in advice.withheld


def test_withheld_verdict_gives_no_advice():
    case = with_fault()
    advice = advise(replace(case, result=structs.replace(case.result, findings=None)))
    assert advice_record(advice).withheld == ("no cause could be concluded, so none can be removed")


def test_top_fix_is_the_best_one_of_a_found_cause():
    case = with_fault(SlowWorker(2, 1, 1.3), SlowNic(1, 2, 40.0))
    best = next(each for each in advise(case).fixes if each.cause)
    found = top_fix(case)
    assert found is not None
    assert (found.name, found.step_s) == (best.name, best.step_s)
    assert top_fix(with_fault()) is None


def test_set_of_fixes_is_simulated_together_and_gains_do_not_add_up():
    case = with_fault(SlowWorker(2, 1, 1.3), SlowNic(1, 2, 40.0))
    advice = advise(case)
    assert advice.together is not None
    names = {each.name for each in advice.together.fixes}
    assert names == {"replace-worker", "repair-link"}
    assert advice.together.step_s == pytest.approx(simulated_step_s(replace(JOB, seed=3)), rel=0.02)
    single = {each.name: case.step_s - each.step_s for each in advice.fixes}
    won_s = case.step_s - advice.together.step_s
    assert won_s != pytest.approx(single["replace-worker"] + single["repair-link"], rel=0.05)


def test_fixes_of_one_cause_are_alternatives_not_a_set():
    advice = advise(with_fault(SlowWorker(2, 1, 1.6)))
    alternatives = {each.name for each in advice.fixes if each.cause == "slow-worker"}
    assert alternatives == {"replace-worker", "move-microbatches"}
    assert advice.together is None or not alternatives <= {
        each.name for each in advice.together.fixes
    }


def test_restart_pays_once_the_loss_reaches_its_cost():
    case = with_fault(SlowWorker(2, 1, 1.6))
    (finding,) = case.findings("slow-worker")
    fix = advise(case).fixes[0]
    steps_s = NUM_STEPS * float(case.replay.recorded_s.mean())
    lost = steps_s * (1 - fix.step_s / fix.before_s) / 60
    assert fix.lost_minutes == pytest.approx(lost)
    # It began before the record: more was lost, so only "now" is certain.
    assert (finding.onset_step, fix.lost_is_at_least) == (None, True)
    since = replace(fix, elapsed=Elapsed(steps_s / 60))
    for restart, pays, pays_since in (
        (0.5 * lost, True, True),
        (2 * lost, None, False),
        (None, None, None),
    ):
        assert replace(fix, stop_minutes=restart).pays_now is pays
        assert replace(since, stop_minutes=restart).pays_now is pays_since
