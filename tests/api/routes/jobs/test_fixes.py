"""Predicted fixes over HTTP: followed, listed with their outcome, deleted."""

from dataclasses import replace

import pytest

from app.advice.facts import MAX_LAYERS
from app.store import fixes
from app.synth.costs import OperationCosts
from app.synth.job import SimulatedJob
from tests.api import recorded
from tests.api.server import KEY
from tests.consumer.jobs import HEALTHY, SIZES, SLOW

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b/fixes"
REPLACE = {"window": "1-8", "fix": "replace-worker"}
LONG_LAST = SimulatedJob(SIZES, 4, costs=OperationCosts(stage_factors=(1.0, 1.5)))


def window(job, first_step, epoch=1):
    return job.record(range(first_step, first_step + 8)).window(epoch)


@pytest.fixture
async def job(api):
    await api.register()
    recorded.save_observed(api, window(SLOW, 8))
    return api


async def test_tracked_fix_is_listed_with_its_prediction(job):
    answer = await job.client.post(PATH, json=REPLACE)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert (found["fix"], found["state"], found["window"]) == ("replace-worker", "open", "1-8")
    assert found["tracked_by"] == "root token"
    assert found["job_id"] == "llm-70b"
    assert found["speed_up"] == pytest.approx(found["step_s_before"] / found["step_s"])
    assert found["sentence"].endswith("\u00d7, not applied so far")
    assert (found["achieved_speed_up"], found["windows"], found["notified"]) == (None, [], None)
    page = {"items": [found], "next_cursor": None}
    assert (await job.client.get(PATH)).json() == page
    assert (await job.client.get("/api/v1/fixes")).json() == page
    measured = await job.client.get("/api/v1/fixes", params={"state": "measured"})
    assert measured.json()["items"] == []


async def test_older_window_is_refused_and_the_newest_is_named(job):
    recorded.save_observed(job, window(SLOW, 16))
    answer = await job.client.post(PATH, json=REPLACE)
    assert answer.status_code == 409
    assert "the newest closed window of the current run, 1-16, not from 1-8" in answer.text
    assert (await job.client.get(PATH)).json()["items"] == []
    assert (await job.client.post(PATH, json=REPLACE | {"window": "1-16"})).status_code == 201


async def test_outcome_is_shown(job):
    await job.client.post(PATH, json=REPLACE)
    with job.store.write() as conn:
        [record] = fixes.live(conn, KEY, now_s=job.clock.now_s)
        tracked = replace(
            record.tracked, state="measured", applied_epoch=2, applied_step=4120, achieved=1.1649
        )
        fixes.save(conn, replace(record.with_tracked(tracked), notice="notified"), now_s=1.0)
    [found] = (await job.client.get(PATH)).json()["items"]
    assert found["sentence"].startswith("worker replaced at step 4,120: predicted ")
    assert found["sentence"].endswith(", achieved 1.16\u00d7")
    assert (found["achieved_speed_up"], found["notified"]) == (1.1649, True)


async def test_layers_of_the_owner_give_the_shares_of_the_stages(job):
    recorded.save_observed(job, window(LONG_LAST, 16))
    asked = {"window": "1-16", "fix": "resplit-stages"}
    refused = await job.client.post(PATH, json=asked)
    assert refused.status_code == 409
    assert "the model's layers" in refused.json()["detail"]
    found = await job.client.post(PATH, json=asked | {"layers": 24})
    assert found.status_code == 201, found.text
    with job.store.write() as conn:
        [record] = fixes.live(conn, KEY, now_s=job.clock.now_s)
    sign = record.tracked.sign
    assert sign.shares == pytest.approx((0.4, 0.6), abs=0.01)
    assert sign.predicted_shares == pytest.approx((0.5, 0.5), abs=0.03)


async def test_deleted_fix_is_gone(job):
    found = (await job.client.post(PATH, json=REPLACE)).json()
    path = f"{PATH}/{found['fix_id']}"
    assert (await job.client.delete(path)).status_code == 204
    answer = await job.client.delete(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "fix_not_found")
    assert (await job.client.get(PATH)).json()["items"] == []
    entries = (await job.client.get("/api/v1/audit?object_kind=fix")).json()["items"]
    assert [each["action"] for each in entries] == ["fix.delete", "fix.track"]


async def test_fix_that_does_not_apply_is_refused_with_the_reason(job):
    recorded.save_observed(job, window(HEALTHY, 16))
    answer = await job.client.post(PATH, json=REPLACE | {"window": "1-16"})
    assert answer.status_code == 409
    assert answer.json()["detail"] == "replace-worker: no worker was found to be slow"


@pytest.mark.parametrize(
    "change",
    [
        {"fix": "no-such-fix"},
        {"window": "1-8..1-16"},
        {"layers": 0},
        {"layers": MAX_LAYERS + 1},
        {"layout": "1,x"},
        {"layers": 8, "layout": "4,4"},
        {"restart_minutes": -1},
        {"more": 1},
    ],
    ids=str,
)
async def test_invalid_request_is_refused(job, change):
    answer = await job.client.post(PATH, json=REPLACE | change)
    assert answer.status_code in (400, 422), answer.text
    assert (await job.client.get(PATH)).json()["items"] == []
