"""The demo's jobs: what each of them is there to show."""

import socket

import numpy as np

from app.cli.demo_jobs import ONSET_STEP, RECOVERY_STEP, demo_jobs
from app.cli.supervisor import free_port, is_port_free

JOBS = {job.job_id: job for job in demo_jobs()}


def culprit_mean_ms(job_id, step):
    """Mean computing time of the culprit of a job's fault, in a step."""
    simulated = JOBS[job_id].simulated
    [culprit] = simulated.faults[0].culprits(simulated.world)
    record = simulated.record([step])
    [rows] = [
        part.rows
        for part in record.parts()
        if (part.dp_rank, part.stage) == (culprit.dp_rank, culprit.stage)
    ]
    names = [simulated.job.op_types.name(code) for code in record.optype[rows].tolist()]
    is_compute = np.array([name.endswith("-compute") for name in names])
    return record.duration_ns[rows][is_compute].mean() / 1e6


def test_two_demo_jobs_have_the_same_slow_host():
    hosts = {
        culprit.host
        for job_id in ("demo-slow-worker", "demo-recovers")
        for culprit in JOBS[job_id].simulated.faults[0].culprits(JOBS[job_id].simulated.world)
    }
    assert hosts == {"host-043"}


def test_no_other_demo_jobs_share_a_host():
    others = [job for name, job in JOBS.items() if name != "demo-recovers"]
    hosts = [set(job.simulated.world.host_names) for job in others]
    assert sum(map(len, hosts)) == len(set().union(*hosts))


def test_the_slow_host_of_the_demo_is_slow_from_the_onset_to_the_recovery():
    healthy_ms = culprit_mean_ms("demo-recovers", ONSET_STEP - 1)
    assert culprit_mean_ms("demo-recovers", ONSET_STEP) > 1.5 * healthy_ms
    assert culprit_mean_ms("demo-recovers", RECOVERY_STEP - 1) > 1.5 * healthy_ms
    assert culprit_mean_ms("demo-recovers", RECOVERY_STEP) < 1.1 * healthy_ms
    assert culprit_mean_ms("demo-slow-worker", RECOVERY_STEP) > 1.5 * healthy_ms


def test_a_port_in_use_is_not_free_and_another_is_found():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_port_free("127.0.0.1", port)
        other = free_port("127.0.0.1")
    assert other != port
    assert is_port_free("127.0.0.1", other)
