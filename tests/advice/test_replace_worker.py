from dataclasses import replace

import pytest

from app.advice.facts import Facts
from app.advice.fix import NotOffered
from app.advice.replace_worker import replace_worker
from app.engine.replays import prepare
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowHost, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import NUM_STEPS, case_of, fix_of, refusal_of, simulated_step_s

JOB = SimulatedJob(Parallelism(4, 4, 8), 16)
SLOW = replace(JOB, faults=(SlowWorker(2, 1, 1.6),))


@pytest.fixture(scope="module")
def case():
    return case_of(SLOW)


def test_prediction_is_what_the_job_takes_without_the_fault(case):
    fix = fix_of(replace_worker(case))
    assert fix.step_s == pytest.approx(simulated_step_s(replace(JOB, seed=5)), rel=0.01)
    assert fix.step_range_s[0] <= fix.step_s <= fix.step_range_s[1]
    assert fix.gpu_hours_per_day == pytest.approx(24 * 128 * (1 - fix.step_s / case.step_s))


@pytest.mark.parametrize("other", [SequenceImbalance(), GcPauses(rate=0.05, pause_s=0.3)])
@pytest.mark.parametrize(("dp", "pp"), [(2, 1), (2, 2), (4, 1)])
def test_replaced_worker_keeps_its_own_sequences_and_pauses(other, dp, pp):
    job = SimulatedJob(Parallelism(dp, pp, 8), 8, seed=2, faults=(other, SlowWorker(1, 0, 2.0)))
    slow = case_of(job)
    fix = fix_of(replace_worker(slow))
    after = prepare(replace(job, faults=(other,)).record(range(NUM_STEPS)).window())
    points = 100 * abs(fix.step_s - float(after.simulated_s.mean())) / slow.step_s
    assert points <= 2.0


def test_worker_that_became_slow_is_scaled_from_then_on():
    late = SlowWorker(2, 1, 1.8, when=FaultSteps(first_step=8))
    slow = case_of(replace(JOB, faults=(late,)))
    fix = fix_of(replace_worker(slow))
    healthy_s = float(prepare(JOB.record(range(NUM_STEPS)).window()).simulated_s.mean())
    assert fix.step_s == pytest.approx(healthy_s, rel=0.01)
    assert {step for edit in fix.change.edits for step in edit.select.steps} == set(range(8, 16))


@pytest.mark.parametrize("name", ["node; rm -rf ~", "--all", "ALL", "node[1-99]", "a,b", "a\nb"])
def test_unsafe_host_names_are_in_no_command(name):
    window = SLOW.record(range(16)).window()
    hosts = dict.fromkeys(window.hosts, name)
    fix = fix_of(replace_worker(case_of(replace(window, hosts=hosts))))
    assert fix.paste == ()
    assert "safe in a command" in fix.needs[0].text


def test_unknown_host_name_is_asked_for():
    window = SLOW.record(range(16)).window()
    fix = fix_of(replace_worker(case_of(replace(window, hosts={}))))
    assert fix.title == "Replace the worker of ranks 48 to 55 (dp 2, stage 1)"
    assert "host name" in fix.needs[0].text
    assert fix.paste == ()


def test_restart_pays_after_its_cost_over_the_share_won(case):
    facts = Facts(restart_minutes=12.0, checkpoint_minutes=30.0)
    fix = fix_of(replace_worker(replace(case, facts=facts)))
    share = 1 - fix.step_s / case.step_s
    assert fix.pays_after_minutes == pytest.approx(27.0 / share)
    assert fix_of(replace_worker(case)).pays_after_minutes is None


def test_without_a_healthy_peer_nothing_is_predicted():
    job = SimulatedJob(Parallelism(1, 4, 8), 16, faults=(SlowHost("host-001", 1.6),))
    refusal_of(replace_worker(case_of(job)))


def test_healthy_job_needs_no_replacement():
    found = refusal_of(replace_worker(case_of(JOB)))
    assert found == NotOffered("replace-worker", "no worker was found to be slow")
