from dataclasses import replace

import pytest

from app.advice.replace_worker import backup_tasks, replace_worker
from app.synth.faults.slow_compute import SlowHost, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import case_of, fix_of

JOB = SimulatedJob(Parallelism(4, 4, 8), 16)


def test_copy_of_a_worker_wins_no_more_than_replacing_it():
    case = case_of(replace(JOB, faults=(SlowWorker(2, 1, 1.6),)))
    reason = backup_tasks(case).reason
    assert "a copy of the slow worker takes 8 more GPUs, 6.2% of the job's" in reason
    (finding,) = case.findings("slow-worker")
    assert f"{finding.cost:.1%} of the step" in reason
    replaced = fix_of(replace_worker(case))
    assert finding.cost == pytest.approx(1 - replaced.step_s / case.step_s, abs=0.02)


def test_copies_of_all_workers_of_a_host_are_counted():
    host = SlowHost("host-001", 1.6)
    job = SimulatedJob(Parallelism(8, 4, 2), 16, faults=(host,))
    num = sum(each == "host-001" for each in job.world.hosts.values())
    reason = backup_tasks(case_of(job)).reason
    assert num > 1
    assert f"a copy of the {num} slow workers takes {2 * num} more GPUs" in reason
