"""The demo's jobs: what each of them is there to show."""

import socket

from app.cli.demo_jobs import demo_jobs
from app.cli.supervisor import free_port, is_port_free

JOBS = {job.job_id: job for job in demo_jobs()}


def test_two_demo_jobs_have_the_same_slow_host():
    hosts = {
        culprit.host
        for job_id in ("demo-slow-worker", "demo-recovers")
        for culprit in JOBS[job_id].simulated.faults[0].culprits(JOBS[job_id].simulated.world)
    }
    assert hosts == {"host-043"}


def test_a_port_in_use_is_not_free_and_another_is_found():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_port_free("127.0.0.1", port)
        other = free_port("127.0.0.1")
    assert other != port
    assert is_port_free("127.0.0.1", other)
