from dataclasses import replace

import pytest

from app.advice.facts import Facts
from app.advice.fix import AdviceCase
from app.advice.removed_causes import repair_link
from app.synth.faults.fault import Fault
from app.synth.faults.slow_network import FlappingNic, SlowDpGroup, SlowLink, SlowNic
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import case_of, fix_of, refusal_of, simulated_step_s

JOB = SimulatedJob(Parallelism(4, 4, 8), 16)


def with_fault(*faults: Fault) -> AdviceCase:
    return case_of(replace(JOB, faults=faults))


@pytest.mark.parametrize(
    "fault", [SlowNic(1, 2, 20.0), SlowLink(2, 0, 60.0), FlappingNic(0, 1, 80.0)]
)
def test_prediction_is_what_the_job_takes_with_a_good_link(fault):
    case = with_fault(fault)
    fix = fix_of(repair_link(case))
    assert fix.step_s == pytest.approx(simulated_step_s(replace(JOB, seed=3)), rel=0.01)
    assert case.step_s > 1.02 * fix.step_s
    assert fix.step_range_s[0] <= fix.step_s <= fix.step_range_s[1]
    assert case.step_s_with(fix.change) == fix.step_s


def test_collectives_alone_name_no_host_to_drain():
    case = with_fault(SlowDpGroup(1, 30.0))
    fix = fix_of(repair_link(replace(case, facts=Facts(scheduler="slurm"))))
    assert not any("scontrol" in each.text for each in fix.paste)
    assert fix.needs == ()
    assert "NCCL_PROFILER_PLUGIN" in fix.paste[0].text
    assert fix.paste[1].text == "ncclras -f json"


def test_good_links_need_no_repair():
    assert "no link" in refusal_of(repair_link(case_of(JOB))).reason
