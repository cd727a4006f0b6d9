"""Scores of other tools over HTTP, stored unchanged."""

from typing import Any

import pytest

from app.api.routes.jobs.scores import MAX_SCORE_BYTES

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/scores"
OWN: dict[str, Any] = {
    "source": "own-probe",
    "step": 7,
    "at": "2026-09-21T14:00:00Z",
    "scores": [
        {"rank": 0, "section": "matmul", "metric": "speed", "value": 3.5, "unit": "TFLOP/s"},
        {"rank": 7, "node": "<b>host</b>", "section": "matmul", "metric": "speed", "score": 0.5},
    ],
}
NVRX = '{"gpu_relative_perf_scores": {"0": 1.0, "1": 0.8, "2": NaN}}\n'


@pytest.fixture
async def job(api):
    await api.register()
    return api


async def add(api, body=NVRX, **query):
    headers = {"content-type": "text/plain"}
    return await api.client.post(PATH, params=query, content=body, headers=headers)


async def test_scores_are_listed_worst_first_without_what_if(job):
    answer = await job.client.post(PATH, json=OWN)
    assert answer.status_code == 201, answer.text
    report = answer.json()
    assert (report["source"], report["num_scores"], report["epoch"]) == ("own-probe", 2, 1)
    found = (await job.client.get(PATH)).json()
    assert (found["what_if"], found["note"]) == (None, "scores, no what-if")
    first, second = found["items"]
    assert first == {
        "report_id": report["report_id"],
        "source": "own-probe",
        "received_at": "2026-09-21T14:13:20Z",
        **{"rank": 7, "node": "<b>host</b>", "section": "matmul", "metric": "speed"},
        **{"unit": None, "value": None, "mean": None, "score": 0.5, "slowdown": 2.0},
        **{"num": 0, "of": 1, "step": 7},
        "at": "2026-09-21T14:00:00Z",
    }
    assert (second["rank"], second["value"], second["slowdown"]) == (0, 3.5, None)


async def test_newest_scores_of_each_tool_are_paged(job):
    await add(job, format="nvrx")
    await job.client.post(PATH, json=OWN)
    job.clock.now_s += 1
    newer = (await add(job, format="nvrx")).json()
    found, cursor = [], None
    for _ in range(5):
        query = {"limit": 1} | ({"cursor": cursor} if cursor else {})
        page = (await job.client.get(PATH, params=query)).json()
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [(each["source"], each["rank"]) for each in found] == [
        *(("nvrx", rank) for rank in (1, 0, 2)),
        *(("own-probe", rank) for rank in (7, 0)),
    ]
    assert found[0]["report_id"] == newer["report_id"]
    of_rank = (await job.client.get(PATH, params={"rank": 7})).json()["items"]
    assert [each["source"] for each in of_rank] == ["own-probe"]
    of_tool = (await job.client.get(PATH, params={"source": "own-probe"})).json()["items"]
    assert len(of_tool) == 2


async def test_newest_report_of_each_tool_can_be_listed(job):
    await job.client.post(PATH, json=OWN)
    for _ in range(3):
        job.clock.now_s += 1
        newest = (await add(job, format="nvrx")).json()["report_id"]
    asked = {"newest": "true", "limit": 1}
    first = (await job.client.get(f"{PATH}/reports", params=asked)).json()
    asked["cursor"] = first["next_cursor"]
    rest = (await job.client.get(f"{PATH}/reports", params=asked)).json()
    found = first["items"] + rest["items"]
    assert [each["source"] for each in found] == ["nvrx", "own-probe"]
    assert (found[0]["report_id"], rest["next_cursor"]) == (newest, None)


async def test_a_newer_report_does_not_shift_the_pages(job):
    await add(job, format="nvrx")
    first = (await job.client.get(PATH, params={"limit": 2})).json()
    job.clock.now_s += 1
    await add(job, '{"gpu_relative_perf_scores": {"5": 0.1}}', format="nvrx")
    rest = (await job.client.get(PATH, params={"cursor": first["next_cursor"]})).json()
    assert [each["rank"] for each in first["items"] + rest["items"]] == [1, 0, 2]


async def test_an_older_report_can_still_be_read(job):
    older = (await add(job, format="nvrx")).json()["report_id"]
    job.clock.now_s += 1
    await add(job, '{"gpu_relative_perf_scores": {"5": 0.1}}', format="nvrx")
    path = f"{PATH}/reports/{older}"
    first = (await job.client.get(path, params={"limit": 2})).json()
    rest = (await job.client.get(path, params={"cursor": first["next_cursor"]})).json()
    assert [each["rank"] for each in first["items"] + rest["items"]] == [1, 0, 2]
    missing = await job.client.get(f"{PATH}/reports/abc")
    assert (missing.status_code, missing.json()["code"]) == (404, "report_not_found")


BAD: list[dict[str, Any]] = [
    {"source": "Own Probe"},
    {"scores": []},
    {"scores": [{"section": "a", "metric": "b"}]},
    {"scores": [{"rank": -1, "section": "a", "metric": "b"}]},
    {"scores": [{"rank": 1, "section": "a\nb", "metric": "b"}]},
    {"scores": [{"rank": 1, "section": "a", "metric": "b", "score": -0.1}]},
    {"scores": [{"rank": 1, "section": "a", "metric": "b", "value": 1e300}]},
    {"scores": [{"rank": 1, "section": "a", "metric": "b"}] * 10_001},
    {"at": "today"},
    {"more": 1},
]


async def test_invalid_scores_are_refused(job):
    for change in BAD:
        answer = await job.client.post(PATH, json=OWN | change)
        assert answer.status_code == 422, change
    assert (await job.client.get(f"{PATH}/reports")).json()["items"] == []


BROKEN = [
    ("nvrx", "no report at all", "no score in it"),
    ("nvrx", "{", "no JSON"),
    ("nvrx", '{"gpu_relative_perf_scores": {"a": 1}}', "line 1: gpu_relative_perf_scores: 'a'"),
    ("megatron-log", "[rank] nothing here", "train with --log-straggler"),
    ("nccl-inspector", '{"coll_perf": 1}', "line 1: no record of the Inspector"),
]


async def test_text_of_another_tool_is_refused_in_one_line(job):
    for name, body, reason in BROKEN:
        answer = await add(job, body, format=name)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_trace")
        assert reason in answer.json()["detail"]
        assert "\n" not in answer.json()["detail"]


async def test_tool_is_detected_from_the_text(job):
    answer = await add(job)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media")
    assert "?format=" in answer.json()["detail"]
    headers = {"content-type": "application/octet-stream"}
    query = {"format": "nvrx"}
    other = await job.client.post(PATH, params=query, content=NVRX, headers=headers)
    assert other.status_code == 415
    assert (await add(job, format="pickle")).status_code == 422


async def test_body_size_is_limited(job):
    answer = await add(job, NVRX + " " * MAX_SCORE_BYTES, format="nvrx")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
async def test_time_outside_the_utc_calendar_is_refused(job, at):
    answer = await job.client.post(PATH, json={**OWN, "at": at})
    assert answer.status_code == 422, answer.text
    own = [{**OWN["scores"][0], "at": at}]
    assert (await job.client.post(PATH, json={**OWN, "scores": own})).status_code == 422
    # Stored, it would break every later answer.
    assert (await job.client.get(PATH)).status_code == 200
