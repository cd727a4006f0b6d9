"""Recording plans: set once, sent with every answer, and in force in time on all ranks."""

from typing import Any

import pytest

from app.ingest.wire.codec import read_entry
from app.store import recordings, runs, windows
from app.store.windows import StepRow
from app.trace.job import shard_of
from tests.api.server import KEY, NOW_S, binary_batch, json_batch

pytestmark = pytest.mark.anyio

JOB_PATH = "/api/v1/jobs/llm-70b"
PATH = f"{JOB_PATH}/recording"
PLAN = {"version": 1, "from_step": 500, "enabled": True, "every": 10, "steps": 2}


async def set_plan(api, **asked):
    answer = await api.client.put(PATH, json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def reach_step(api, step, *, epoch=1, step_s=None):
    """Save the last step of the run and, if given, its step time."""
    with api.store.write() as conn:
        runs.note_data(conn, KEY, epoch=epoch, last_data_s=api.clock(), last_step=step)
        if step_s is not None:
            rows = [StepRow(epoch, at, step_s, None, None, None, f"{epoch}-0") for at in range(3)]
            windows.save_steps(conn, KEY, rows)


def plan_of(shown):
    return {name: shown[name] for name in PLAN}


@pytest.mark.parametrize("batch", [json_batch(), binary_batch()], ids=["JSON", "binary"])
async def test_every_answer_to_a_batch_has_the_plan(api, batch):
    await api.register()
    assert (await api.push(batch)).status_code == 202  # the registration is cached from here on
    assert plan_of(await set_plan(api, every=10, steps=2, from_step=500)) == PLAN
    assert (await api.push(batch)).json()["recording"] == PLAN
    assert (await api.push(json_batch(batch_seq=1))).json()["recording"] == PLAN
    assert plan_of((await api.client.get(PATH)).json()) == PLAN


async def test_another_process_sends_the_plan_within_two_seconds(api):
    await api.register()
    await api.push(json_batch())
    with api.store.write() as conn:
        sample = recordings.StepSample(enabled=False)
        recordings.add(conn, KEY, 1, sample, from_step=9, now_s=NOW_S, by="another")
    assert "recording" not in (await api.push(json_batch())).json()
    api.monotonic.now_s += 2
    plan_sent = (await api.push(json_batch())).json()["recording"]
    assert plan_sent == {"version": 1, "from_step": 9, "enabled": False, "every": 1, "steps": 1}


async def test_earlier_plans_are_sent_until_the_newest_begins(api):
    await api.register()
    first = await set_plan(api, every=10, steps=2, from_step=500)
    await set_plan(api, enabled=False, from_step=800)
    plan_sent = (await api.push(json_batch())).json()["recording"]
    assert (plan_sent["version"], plan_sent["from_step"]) == (2, 800)
    assert plan_sent["earlier"] == [plan_of(first)]
    reach_step(api, 800)
    api.monotonic.now_s += 2
    assert "earlier" not in (await api.push(json_batch())).json()["recording"]
    shown = (await api.client.get(PATH)).json()
    assert (shown["has_begun"], shown["last_step"]) == (True, 800)
    assert shown["until_then"] == plan_of(first)


@pytest.mark.parametrize(
    ("step_s", "lead"),
    [
        pytest.param(None, 100, id="nobody knows how long a step takes"),
        pytest.param(0.5, 60, id="thirty seconds of steps"),
        pytest.param(20.0, 10, id="at least ten steps"),
    ],
)
async def test_first_step_leaves_time_for_every_rank(api, step_s, lead):
    await api.register()
    reach_step(api, 1000, step_s=step_s)
    assert (await set_plan(api, every=10))["from_step"] == 1001 + lead


async def test_unrecorded_time_extends_the_lead(api):
    await api.register()
    reach_step(api, 1000, step_s=0.5)
    await set_plan(api, enabled=False, from_step=1001)
    api.clock.now_s += 3600
    # Step 1001 cannot be observed: the job no longer sends batches.
    assert (await set_plan(api, every=10))["from_step"] == 1001 + 7200 + 60


async def test_silent_job_is_not_assumed_to_progress(api):
    await api.register()
    reach_step(api, 1000, step_s=0.5)
    api.clock.now_s += 3600
    assert (await set_plan(api, every=10))["from_step"] == 1001 + 60


async def test_stalled_job_is_not_assumed_to_progress(api):
    await api.register()
    reach_step(api, 1000, step_s=0.5)
    await set_plan(api, enabled=False, from_step=1001)
    with api.store.write() as conn:
        runs.save_silent_ranks(conn, KEY, 1, runs.SilentRanks(stalled_since_s=NOW_S))
    api.clock.now_s += 48 * 3600
    assert (await set_plan(api, every=10))["from_step"] == 1001 + 60


async def test_run_without_known_steps_applies_a_plan_at_once(api):
    await api.register()
    reach_step(api, 5000)
    await set_plan(api, enabled=False)
    await api.register(run_key="run-2")
    assert (await set_plan(api))["from_step"] == 0
    assert (await set_plan(api))["version"] == 2


async def test_plan_is_not_delayed_by_a_later_one(api):
    await api.register()
    reach_step(api, 10)
    await set_plan(api, every=10, from_step=2**53)
    assert (await set_plan(api, every=10))["from_step"] == 111
    shown = await set_plan(api, enabled=False)
    assert (shown["version"], shown["from_step"]) == (3, 111)


async def test_batch_of_an_unrecorded_step_is_accepted(api):
    await api.register()
    reach_step(api, 10)
    nothing: dict[str, Any] = {"steps_done": [], "columns": {"step": [], "optype": []}}
    nothing["columns"] |= {"start_ns": [], "duration_ns": []}
    for at_step, status in ((1_000_010, 202), (1_000_011, 422)):
        assert (await api.push(json_batch(at_step=at_step, **nothing))).status_code == status
    [entry] = api.queue.shards[shard_of(KEY, 4)].new
    assert read_entry(entry.body).at_step == 1_000_010


async def test_any_step_is_accepted_after_recording_resumes(api):
    far = 5_000_000  # more than a rank that records every step may skip
    batch = json_batch(steps_done=[[far, 2]])
    batch["columns"] |= {"step": [far, far]}
    await api.register()
    reach_step(api, 1000)
    assert (await api.push(batch)).status_code == 422
    await set_plan(api, enabled=False, from_step=1001)
    await set_plan(api, from_step=1002)
    assert (await api.push(batch)).json()["accepted"] == 2
    reach_step(api, far)
    api.monotonic.now_s += 2
    batch["columns"] |= {"step": [2 * far, 2 * far]}
    assert (await api.push(batch | {"steps_done": [[2 * far, 2]]})).status_code == 422


async def test_setting_the_same_plan_again_has_no_effect(api):
    await api.register()
    reach_step(api, 450)
    first = await set_plan(api, every=10, from_step=500)
    assert await set_plan(api, every=10) == first
    assert len((await api.client.get("/api/v1/audit?object_kind=recording")).json()["items"]) == 1


@pytest.mark.parametrize(
    ("asked", "last", "earlier"),
    [
        pytest.param({"enabled": False}, 1499, 1498, id="all are recorded until then"),
        pytest.param({"every": 100, "steps": 10}, 1409, 1408, id="some are"),
    ],
)
async def test_plan_has_begun_when_no_earlier_step_can_follow(api, asked, last, earlier):
    await api.register()
    reach_step(api, 1000)
    if "every" in asked:
        await set_plan(api, **asked, from_step=1001)
    await set_plan(api, enabled=False, from_step=1500)
    for step, has_begun in ((earlier, False), (last, True)):
        reach_step(api, step)
        assert (await api.client.get(PATH)).json()["has_begun"] is has_begun


async def test_plan_changes_are_audited(api):
    await api.register()
    await set_plan(api, every=10, steps=2, from_step=500)
    [deed] = (await api.client.get("/api/v1/audit?object_kind=recording")).json()["items"]
    assert (deed["action"], deed["object_id"]) == ("recording.set", "llm-70b")
    assert deed["detail"]["changes"]["every"] == {"old": 1, "new": 10}
    shown = (await api.client.get(PATH)).json()
    assert (shown["set_by"], shown["set_at"]) == ("root token (root)", "2026-09-21T14:13:20Z")


@pytest.mark.parametrize(
    "asked",
    [
        {"every": 0},
        {"every": 10, "steps": 11},
        {"every": 1_000_001},
        {"steps": 0},
        {"from_step": -1},
        {"from_step": 2**53 + 1},
        {"every": 1.5},
        {"every": "10"},
        {"enabled": 1},
        {"enabled": None},
        {"often": 3},
    ],
)
async def test_invalid_plan_gets_422(api, asked):
    await api.register()
    answer = await api.client.put(PATH, json=asked)
    assert answer.status_code == 422, answer.text
    assert (await api.client.get(PATH)).json()["version"] == 0


async def test_a_step_that_the_job_has_passed_gets_409(api):
    await api.register()
    reach_step(api, 500)
    answer = await api.client.put(PATH, json={"every": 10, "from_step": 500})
    assert answer.status_code == 409
    assert "the job has come to step 500: name a later one" in answer.json()["detail"]


async def test_all_of_n_steps_means_every_step(api):
    await api.register()
    shown = await set_plan(api, every=7, steps=7, from_step=500)
    assert (shown["version"], shown["every"], shown["steps"]) == (1, 1, 1)


async def test_old_plans_are_deleted(api):
    await api.register()
    for number in range(12):
        await set_plan(api, every=number + 2, from_step=1000 + number)
    plan_sent = (await api.push(json_batch())).json()["recording"]
    assert (plan_sent["version"], len(plan_sent["earlier"])) == (12, 7)
