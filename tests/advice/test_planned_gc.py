from dataclasses import replace

import pytest

from app.advice.removed_causes import EVERY_STEPS, planned_gc
from app.synth.faults.interruptions import GcPauses
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import case_of, fix_of, simulated_step_s

JOB = SimulatedJob(Parallelism(4, 4, 8), 16)


@pytest.mark.parametrize("is_sent", [False, True])
def test_pauses_are_taken_out_whether_the_client_reports_them_or_not(is_sent):
    case = case_of(replace(JOB, faults=(GcPauses(rate=0.02, pause_s=0.3, is_sent=is_sent),)))
    fix = fix_of(planned_gc(case))
    (finding,) = case.findings("gc-pause")
    assert bool(finding.evidence["reported_by_client"]) == is_sent
    healthy_s = simulated_step_s(replace(JOB, seed=3))
    assert fix.step_s == pytest.approx(healthy_s + 0.3 / EVERY_STEPS, rel=0.01)
    assert fix.step_range_s[0] <= fix.step_s <= fix.step_range_s[1]
