"""Silences and maintenance windows: created, listed, ended, and invalid ones refused."""

from datetime import UTC, datetime, timedelta

import pytest

from app.store.alerting import notifications, silences
from tests.api.alerting import fire
from tests.api.server import NOW_S

pytestmark = pytest.mark.anyio

PATH = "/api/v1/silences"
LATER = "2026-09-21T15:13:20Z"  # an hour after NOW_S
MATCHERS = [{"label": "job", "pattern": "job-*"}]


def at(**after):
    """RFC 3339 time this long after now."""
    return (datetime.fromtimestamp(NOW_S, UTC) + timedelta(**after)).isoformat()


async def make(client, **changes):
    wanted = {"matchers": MATCHERS, "ends_at": LATER, "comment": "new switches"} | changes
    return await client.post(PATH, json=wanted)


async def test_silence_starts_now_under_the_tokens_name(api):
    _, text = api.token("write", "read", "admin")
    async with api.client_with(text) as client:
        answer = await make(client)
        assert answer.status_code == 201, answer.text
        made = answer.json()
        listed = (await client.get(PATH)).json()["items"]
        [entry] = (await client.get("/api/v1/audit?object_kind=silence")).json()["items"]
    silence_id = made["silence_id"]
    assert made == {
        "silence_id": silence_id,
        "kind": "silence",
        "matchers": [{"label": "job", "pattern": "job-*", "is_negative": False}],
        "starts_at": "2026-09-21T14:13:20Z",
        "ends_at": LATER,
        "author": "made by a test",
        "comment": "new switches",
        "created_at": "2026-09-21T14:13:20Z",
        "until_end_of": None,
        "state": "active",
    }
    assert listed == [made]
    assert (entry["action"], entry["object_id"]) == ("silence.create", silence_id)
    assert entry["detail"]["matchers"] == MATCHERS
    with api.store.read() as conn:
        [stored] = silences.active(conn, "default", now_s=NOW_S)
    assert stored.mutes({"job": "job-7"}, NOW_S)


async def test_silence_can_start_in_the_future(api):
    answer = await make(api.client, kind="maintenance", starts_at=at(days=2), ends_at=at(days=3))
    assert (answer.json()["kind"], answer.json()["state"]) == ("maintenance", "coming")
    with api.store.read() as conn:
        assert silences.active(conn, "default", now_s=NOW_S) == []


async def test_past_start_becomes_now(api):
    answer = await make(api.client, starts_at=at(days=-1))
    assert answer.json()["starts_at"] == "2026-09-21T14:13:20Z"


async def test_silence_is_ended_once_and_no_longer_listed(api):
    silence_id = (await make(api.client)).json()["silence_id"]
    for _ in range(2):
        assert (await api.client.delete(f"{PATH}/{silence_id}")).status_code == 204
    assert (await api.client.get(PATH)).json()["items"] == []
    [ended] = (await api.client.get(PATH, params={"ended": True})).json()["items"]
    assert (ended["state"], ended["ends_at"]) == ("ended", "2026-09-21T14:13:20Z")
    assert (await api.client.get(f"{PATH}/{silence_id}")).json() == ended
    entries = (await api.client.get("/api/v1/audit")).json()["items"]
    assert [entry["action"] for entry in entries] == ["silence.end", "silence.create"]
    assert entries[0]["detail"]["matchers"] == [{"is_negative": False, **each} for each in MATCHERS]
    assert entries[0]["detail"]["changes"]["ends_at"]["new"] == "2026-09-21T14:13:20+00:00"


@pytest.mark.parametrize("action", ["make", "end"])
async def test_created_or_ended_silence_updates_its_groups_at_once(api, action):
    await api.register("job-a")
    state = fire(api)
    silence_id = (await make(api.client)).json()["silence_id"] if action == "end" else None
    with api.store.write() as conn:
        for group in notifications.claim_groups(conn, now_s=NOW_S, lease_s=30.0, limit=10):
            notifications.release(conn, group, next_at_s=None, last_at_s=NOW_S)
        notifications.wake_group(conn, state.job_id, state.rule, at_s=NOW_S + 600)
        assert not notifications.has_due_group(conn, now_s=NOW_S)
    if silence_id is None:
        await make(api.client)
    else:
        await api.client.delete(f"{PATH}/{silence_id}")
    with api.store.read() as conn:
        assert notifications.has_due_group(conn, now_s=NOW_S)


@pytest.mark.parametrize("end", ["finished", "restarted"])
async def test_silence_until_the_job_ends_ends_with_its_run(api, end):
    for job in ("job-a", "job-b"):
        await api.register(job)
    state = fire(api)
    made = await make(api.client, ends_at=None, until_end_of="job-a")
    assert made.status_code == 201, made.text
    assert (made.json()["until_end_of"], made.json()["ends_at"]) == (
        "job-a",
        "2026-10-21T14:13:20Z",
    )
    await api.client.post("/api/v1/jobs/job-b/end")
    await api.register("job-a")  # another rank of the same run
    [shown] = (await api.client.get("/api/v1/alerts")).json()["items"]
    assert shown["silenced_by"] == [made.json()["silence_id"]]
    with api.store.write() as conn:
        notifications.wake_group(conn, state.job_id, state.rule, at_s=NOW_S + 600)
        assert not notifications.has_due_group(conn, now_s=NOW_S)
    if end == "finished":
        await api.client.post("/api/v1/jobs/job-a/end")
    else:
        await api.register("job-a", run_key="again")
    [ended] = (await api.client.get(PATH, params={"ended": True})).json()["items"]
    assert (ended["state"], ended["ends_at"]) == ("ended", "2026-09-21T14:13:20Z")
    with api.store.read() as conn:
        assert notifications.has_due_group(conn, now_s=NOW_S)


async def test_silence_until_the_end_of_a_job_that_has_ended_is_refused(api):
    await api.register("job-a")
    await api.client.post("/api/v1/jobs/job-a/end")
    ended = await make(api.client, until_end_of="job-a")
    assert (ended.status_code, ended.json()["code"]) == (409, "conflict")
    unknown = await make(api.client, until_end_of="job-z")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "job_not_found")


BAD = {
    "without an end": {"ends_at": None},
    "over already": {"ends_at": at(hours=-1)},
    "ends before it starts": {"starts_at": at(hours=2), "ends_at": at(hours=1)},
    "longer than a month": {"ends_at": at(days=30, seconds=1)},
    "of everything by saying nothing": {"matchers": []},
    "of everything by a label that none has": {"matchers": [{"label": "hots", "pattern": "*"}]},
    "a matcher of nothing": {"matchers": [{"label": "", "pattern": "*"}]},
    "a pattern on two lines": {"matchers": [{"label": "job", "pattern": "a\nb"}]},
    "too many matchers": {"matchers": MATCHERS * 33},
    "no comment": {"comment": ""},
    "a time without its zone": {"ends_at": "2026-09-21T15:13:20"},
    "a time as a number": {"ends_at": NOW_S + 3600},
    "a time that is none": {"ends_at": "2026-13-21T15:13:20Z"},
    "another author": {"author": "somebody else"},
    "another project": {"project": "research"},
    "another kind": {"kind": "holiday"},
}


@pytest.mark.parametrize("what", BAD)
async def test_invalid_silence_gets_422(api, what):
    answer = await make(api.client, **BAD[what])
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid"
