"""The client's recorders against a running service: their data and their recording plan."""

import paceline_client
import pytest

from tests.browser.paceline import running
from tests.e2e.stack import wait_until

pytestmark = pytest.mark.nightly

WORKERS = [(0, 0), (0, 1), (1, 0), (1, 1)]
JOB = "/jobs/llm-70b"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running("serve", tmp_path_factory.mktemp("serve"), step_deadline_s="600") as service:
        yield service


def recorder(service, rank, job="llm-70b"):
    dp_rank, stage = WORKERS[rank]
    return paceline_client.start(
        job,
        service.url,
        service.token,
        run_key="run-1",
        rank=rank,
        dp_rank=dp_rank,
        stage=stage,
        dp_size=2,
        pp_size=2,
        timing="host",
        gc_pauses=False,
        gpu_readings=False,
        flush_interval_s=0.05,
    )


def record(recorders, step, kind="train"):
    for each in recorders:
        with each.step(step, kind):
            for microbatch in range(2):
                with each.op("forward-compute", microbatch=microbatch):
                    pass
    for each in recorders:
        each.flush(30.0)


def steps_of(service, job="llm-70b"):
    items = service.get(f"/jobs/{job}/steps", limit=500)["items"]
    return {item["step"]: item["skipped_reason"] for item in items}


def test_step_kinds_and_dropped_operations_reach_the_service(service):
    recorders = [recorder(service, rank) for rank in range(4)]
    try:
        with recorders[2].op("optimizer"):  # outside a step, so it is dropped
            pass
        record(recorders, 0, "first")
        record(recorders, 1)
        wait_until(lambda: len(steps_of(service)) == 2, "both steps are settled")
        assert steps_of(service)[0] == "it was among the first, which have start-up work in them"
        wait_until(lambda: bool(service.get(JOB)["drops"]), "the dropped operation is known")
        assert service.get(JOB)["drops"]["worst"] == [{"dp_rank": 1, "stage": 0, "dropped": 1}]
    finally:
        for each in recorders:
            each.close()


def test_all_ranks_apply_a_recording_plan_at_the_same_step(service):
    recorders = [recorder(service, rank, "sampled") for rank in range(4)]
    try:
        record(recorders, 0)
        asked = {"every": 4, "steps": 1, "from_step": 10}
        answer = service.http.put("/jobs/sampled/recording", json=asked)
        assert answer.status_code == 200, answer.text
        # The answer to the next batch has the plan; another process would send it after 2 s.
        for step in range(1, 22):
            record(recorders, step)
        wanted = [*range(10), 12, 16, 20]
        wait_until(lambda: len(steps_of(service, "sampled")) >= len(wanted), "all are settled")
        assert steps_of(service, "sampled") == dict.fromkeys(wanted)
        assert service.get("/jobs/sampled/recording")["has_begun"] is True
    finally:
        for each in recorders:
            each.close()
