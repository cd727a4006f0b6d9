"""Ranks report over the API how they ended; what the job, the fleet and the headline then say."""

import pytest

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b"
RANKS = [(dp_rank, stage) for dp_rank in range(2) for stage in range(2)]


async def report(api, number, outcome="finished", **about):
    dp_rank, stage = RANKS[number]
    body = {"epoch": 1, "rank": number, "dp_rank": dp_rank, "stage": stage, "host": f"n{number}"}
    return await api.client.post(f"{PATH}/exits", json={**body, "outcome": outcome, **about})


async def register(api):
    await api.register(parallelism={"dp_size": 2, "pp_size": 2})


async def job_of(api):
    return (await api.client.get(PATH)).json()


async def test_the_last_workers_end_finishes_the_job(api):
    await register(api)
    for number in range(3):
        answer = (await report(api, number)).json()
        assert answer["job_state"] != "finished"
    await report(api, 2)  # again: a rank counts once
    assert (await job_of(api))["ended_at"] is None
    assert (await report(api, 3)).json()["job_state"] == "finished"
    job = await job_of(api)
    assert (job["state"], job["end"]) == ("finished", None)
    assert job["ended_at"] is not None


async def test_a_crash_is_told_with_rank_host_and_exception_everywhere(api):
    await register(api)
    hostile = "<img src=x onerror=alert(1)>\u202e\n\x00" + 1500 * "y"
    for number in (0, 1, 3):
        await report(api, number, "failed", error_type="RuntimeError", message="gloo: broken pipe")
    answer = await report(api, 2, "failed", error_type="ValueError", message=hostile)
    assert answer.json()["job_state"] == "crashed"
    job = await job_of(api)
    assert (job["state"], job["end"]["rank"], job["end"]["host"]) == ("crashed", 2, "n2")
    assert len(job["end"]["message"]) <= 500
    assert "\x00" not in job["end"]["message"]
    for sentence in (
        job["end"]["sentence"],
        (await api.client.get(f"{PATH}/headline")).json()["sentence"],
        (await api.client.get("/api/v1/fleet")).json()["items"][0]["silence"],
    ):
        assert "n2, rank 2 (dp 1, stage 0) raised ValueError: \u2068<img src=x" in sentence
        assert len(sentence) < 400
        assert "\u202e" not in sentence
    fleet = (await api.client.get("/api/v1/fleet?state=crashed")).json()
    assert [each["job_id"] for each in fleet["items"]] == ["llm-70b"]
    assert fleet["summary"]["lost_per_hour_stalled"] == 0


async def test_ranks_of_which_nobody_knows_how_they_ended_are_no_crash(api):
    await register(api)
    for number in range(4):
        assert (await report(api, number, "finished" if number == 1 else "ended")).is_success
    assert (await job_of(api))["state"] == "finished"
    await report(api, 3, "failed", error_type="RuntimeError", message="NCCL: remote process exited")
    job = await job_of(api)
    assert (job["state"], job["end"]["rank"]) == ("crashed", 0)
    assert "n0, rank 0 (dp 0, stage 0) ended without a word" in job["end"]["sentence"]


async def test_an_end_by_request_stays_whatever_ranks_report(api):
    await register(api)
    await api.client.post(f"{PATH}/end")
    for number in range(4):
        await report(api, number, "killed")
    assert (await job_of(api))["state"] == "finished"


async def test_a_restart_with_the_same_run_key_goes_on(api):
    await register(api)
    for number in range(4):
        await report(api, number, "killed")
    assert (await job_of(api))["state"] == "crashed"
    await register(api)
    job = await job_of(api)
    assert (job["ended_at"], job["end"], job["epoch"]) == (None, None, 1)
    for number in range(4):
        assert (await job_of(api))["ended_at"] is None  # the reports of before do not count
        await report(api, number)
    assert (await job_of(api))["state"] == "finished"
    await register(api)
    await api.client.post(f"{PATH}/end")
    await register(api)  # an end by request stays
    assert (await job_of(api))["state"] == "finished"


async def test_a_later_report_of_a_rank_replaces_its_first(api):
    await register(api)
    for number in range(4):
        await report(api, number)
    await report(api, 0, "failed", exit_code=3)  # its exit status was known after its last word
    job = await job_of(api)
    assert (job["state"], job["end"]["exit_code"]) == ("crashed", 3)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"rank": 99}, 422),
        ({"dp_rank": 2}, 422),
        ({"epoch": 2}, 409),
        ({"outcome": "bored"}, 422),
        ({"message": 2001 * "x"}, 422),
        ({"signal": 0}, 422),
        ({"of_another_version": 1}, 422),
    ],
)
async def test_reports_that_cannot_be_are_refused(api, changes, status):
    await register(api)
    assert (await report(api, 0, **{"outcome": "killed", **changes})).status_code == status
