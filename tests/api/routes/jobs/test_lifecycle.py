"""Archiving, deleting and labelling jobs over the API; what a new run of such a job does."""

import pytest

from app.store import runs
from app.store.jobs import RESTORABLE_FOR_S
from app.store.tables import jobs as jobs_table
from app.store.tables import runs as runs_table
from tests.api import alerting
from tests.api.server import JOB, KEY

pytestmark = pytest.mark.anyio

PATH = "/api/v1/jobs/llm-70b"


async def ended(api, **given):
    await api.register(**given)
    assert (await api.client.post(f"{PATH}/end")).is_success


async def listed(api, lifecycle="active"):
    """Ids of the jobs of a kind, by both lists."""
    params = {"lifecycle": lifecycle}
    jobs = (await api.client.get("/api/v1/jobs", params=params)).json()["items"]
    fleet = (await api.client.get("/api/v1/fleet", params=params)).json()["items"]
    assert [each["job_id"] for each in jobs] == [each["job_id"] for each in fleet]
    return [each["job_id"] for each in jobs]


async def audited(api):
    """Action, actor and detail of each audit entry on the job, newest first."""
    entries = (await api.client.get("/api/v1/audit?object_kind=job")).json()["items"]
    return [(each["action"], each["actor"], each["detail"]) for each in entries]


async def test_an_archived_job_leaves_list_and_counts_until_it_is_unarchived(api):
    await ended(api)
    answer = await api.client.post(f"{PATH}/archive")
    assert (answer.status_code, answer.json()["archived_at"]) == (200, "2026-09-21T14:13:20Z")
    assert (await api.client.post(f"{PATH}/archive")).is_success
    assert (await listed(api), await listed(api, "archived")) == ([], ["llm-70b"])
    summary = (await api.client.get("/api/v1/fleet")).json()["summary"]
    assert (summary["jobs"], summary["archived"], summary["deleted"]) == (0, 1, 0)
    assert (await api.client.get(PATH)).is_success
    answer = await api.client.post(f"{PATH}/unarchive")
    assert answer.json()["archived_at"] is None
    assert (await listed(api), await listed(api, "archived")) == (["llm-70b"], [])
    assert [entry[:2] for entry in await audited(api)] == [
        ("job.unarchive", "root token (root)"),
        ("job.archive", "root token (root)"),
    ]


async def test_a_deleted_job_can_be_restored_until_its_removal(api):
    await ended(api)
    job = (await api.client.delete(PATH)).json()
    assert job["deleted_at"] == "2026-09-21T14:13:20Z"
    assert job["removal_at"] == "2026-09-22T14:13:20Z"
    assert (await listed(api), await listed(api, "deleted")) == ([], ["llm-70b"])
    assert (await api.client.get("/api/v1/search?q=llm")).json()["items"] == []
    assert (await api.client.get("/api/v1/fleet")).json()["summary"]["deleted"] == 1
    assert (await api.client.post(f"{PATH}/restore")).json()["deleted_at"] is None
    assert await listed(api) == ["llm-70b"]
    assert [entry[0] for entry in await audited(api)] == ["job.restore", "job.delete"]


@pytest.mark.parametrize("verb", ["archive", "delete"])
async def test_a_running_job_is_neither_archived_nor_deleted(api, verb):
    await api.register()
    alerting.add_consumer(api)
    method, path = ("POST", f"{PATH}/archive") if verb == "archive" else ("DELETE", PATH)
    for query in ("", "?end=true"):
        answer = await api.client.request(method, path + query)
        assert (answer.status_code, answer.json()["code"]) == (409, "job_running")
        assert "end it with POST /api/v1/jobs/llm-70b/end" in answer.json()["detail"]
    assert await listed(api) == ["llm-70b"]


@pytest.mark.parametrize("verb", ["archive", "delete"])
async def test_a_stalled_job_is_ended_first_if_wanted(api, verb):
    await api.register()
    with api.store.write() as conn:
        runs.note_data(conn, KEY, epoch=1, last_data_s=api.clock.now_s, last_step=8)
        conn.execute(runs_table.update().values(stalled_since_s=api.clock.now_s))
    method, path = ("POST", f"{PATH}/archive") if verb == "archive" else ("DELETE", PATH)
    refused = await api.client.request(method, path)
    assert (refused.status_code, "end=true" in refused.json()["detail"]) == (409, True)
    taken = await api.client.request(method, f"{path}?end=true")
    assert (taken.status_code, taken.json()["state"]) == (200, "finished")


@pytest.mark.parametrize("verb", ["archive", "delete"])
async def test_a_new_run_lists_the_job_again_and_the_same_run_does_not(api, verb):
    await ended(api)
    if verb == "archive":
        await api.client.post(f"{PATH}/archive")
    else:
        await api.client.delete(PATH)
    assert await api.register() == 1
    assert await listed(api) == []
    assert await api.register(run_key="another") == 2
    assert await listed(api) == ["llm-70b"]
    action = "job.unarchive" if verb == "archive" else "job.restore"
    assert (await audited(api))[0] == (action, "paceline", {"reason": "a new run began"})


async def test_a_job_being_removed_takes_no_run_and_cannot_be_restored(api):
    await ended(api)
    await api.client.delete(PATH)
    api.clock.now_s += RESTORABLE_FOR_S + 1
    with api.store.write() as conn:
        conn.execute(jobs_table.update().values(removal_began_s=api.clock.now_s))
    for answer in (
        await api.client.put(PATH, json=JOB | {"run_key": "another"}),
        await api.client.post(f"{PATH}/restore"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "job_being_removed")
        assert int(answer.headers["retry-after"]) > 0


async def test_edited_labels_win_over_registered_ones_and_can_be_taken_back(api):
    await api.register(labels={"owner": "nobody", "team": "core"})
    for labels in ({"owner": "vision <b>\u202e", "priority": "high"}, {"priority": "low"}):
        answer = await api.client.patch(PATH, json={"labels": labels})
    expected = {"owner": "vision <b>\u202e", "priority": "low"}
    assert answer.json()["edited_labels"] == expected
    assert answer.json()["labels"] == {"team": "core"} | expected
    for query in ("owner=vision", "VISION", "priority=low"):
        fleet = (await api.client.get("/api/v1/fleet", params={"q": query})).json()
        assert [each["labels"]["priority"] for each in fleet["items"]] == ["low"], query
    back = await api.client.patch(PATH, json={"labels": {"owner": None, "priority": None}})
    assert back.json()["labels"] == {"owner": "nobody", "team": "core"}
    changes = [detail["changes"] for _, _, detail in await audited(api)]
    assert changes[1] == {"priority": {"old": "high", "new": "low"}}
    assert changes[0]["owner"] == {"old": "vision <b>\u202e", "new": None}


async def test_labels_of_the_recorder_and_too_many_labels_are_refused(api):
    await api.register()
    answer = await api.client.patch(PATH, json={"labels": {"times": "gpu"}})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    for start, status in ((0, 200), (30, 409)):
        labels = {f"tag-{number}": "x" for number in range(start, start + 30)}
        answer = await api.client.patch(PATH, json={"labels": labels})
        assert answer.status_code == status
    assert (await api.client.patch(PATH, json={"labels": {"a": ""}})).status_code == 422


async def test_search_finds_jobs_by_words_in_any_order_and_hosts(api):
    names = {"a": "Llama 70B", "llama-b": "vision", "c": "archived llama"}
    for job_id, name in names.items():
        path = f"/api/v1/jobs/{job_id}"
        await api.client.put(path, json=JOB | {"name": name, "labels": {"team": f"t-{job_id}"}})
    await api.client.post("/api/v1/jobs/c/end")
    await api.client.post("/api/v1/jobs/c/archive")

    async def found(q, limit=10):
        params = {"q": q, "limit": limit}
        items = (await api.client.get("/api/v1/search", params=params)).json()["items"]
        return [each["id"] for each in items]

    assert await found("LLAMA") == ["a", "llama-b", "c"]
    assert await found("70b llama") == ["a"]
    assert await found("team=t-llama") == ["llama-b"]
    assert await found("llama", limit=1) == ["a"]
    assert len(await found("")) == 3
    assert await found("nothing") == []
    assert await found("%") == []
