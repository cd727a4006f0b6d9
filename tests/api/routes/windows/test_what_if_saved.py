"""Saved what-if questions over HTTP."""

import json

import pytest

from app.api.http.bodies import MAX_JSON_BYTES
from tests.api import recorded

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/what-ifs"
EDITS = [
    {
        "select": {"op_types": ["pp-comm"], "workers": [[1, 0]], "steps": [1]},
        "change": {"kind": "set", "value": 0},
    },
    {"change": {"kind": "from-worker", "dp_rank": 1, "stage": 0}},
]
QUESTION = {"name": "<b>no</b> transfers", "window": "1-0", "edits": EDITS}


@pytest.fixture
async def job(api):
    await api.register()
    recorded.save(api, recorded.window())
    return api


async def test_saved_question_can_be_asked_unchanged(job):
    answer = await job.client.post(PATH, json=QUESTION)
    assert answer.status_code == 201, answer.text
    saved = answer.json()
    assert (saved["name"], saved["window"], saved["edits"]) == (QUESTION["name"], "1-0", EDITS)
    assert saved["saved_at"] == "2026-09-21T14:13:20Z"
    again = await job.client.get(f"{PATH}/{saved['question_id']}")
    assert again.json() == saved
    assert (await job.client.get(PATH)).json() == {"items": [saved], "next_cursor": None}
    asked = f"/api/v1/jobs/llm-70b/windows/{saved['window']}/what-if"
    found = await job.client.post(asked, json={"edits": saved["edits"]})
    assert found.status_code == 200
    assert len(found.json()["edits"]) == 2


async def test_a_deleted_question_is_gone(job):
    saved = (await job.client.post(PATH, json=QUESTION)).json()
    path = f"{PATH}/{saved['question_id']}"
    assert (await job.client.delete(path)).status_code == 204
    for answer in (await job.client.get(path), await job.client.delete(path)):
        assert (answer.status_code, answer.json()["code"]) == (404, "question_not_found")
    assert (await job.client.get(PATH)).json()["items"] == []


BAD = [
    {"name": ""},
    {"name": "a\nb"},
    {"name": "x" * 257},
    {"window": "latest"},
    {"window": "1-0..1-2"},
    {"edits": [{"change": {"kind": "no-such"}}]},
    {"edits": [{"change": {"kind": "factor", "value": -1}}]},
    {"more": 1},
]


@pytest.mark.parametrize("change", BAD, ids=[json.dumps(change)[:30] for change in BAD])
async def test_invalid_question_is_not_saved(job, change):
    answer = await job.client.post(PATH, json=QUESTION | change)
    assert answer.status_code == 422, answer.text
    assert (await job.client.get(PATH)).json()["items"] == []


async def test_size_of_a_saved_question_is_limited(job):
    edit = {"select": {"stages": [1] * 8000}, "change": {"kind": "ideal"}}
    body = json.dumps(QUESTION | {"edits": [edit] * 3})
    assert len(body) > MAX_JSON_BYTES
    answer = await job.client.post(PATH, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
