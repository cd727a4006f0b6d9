"""Hosts blamed by several jobs, and the history of one host."""

import dataclasses

import pytest

from app.store import fleet, hosts
from app.store.fleet import Loss
from app.trace.job import job_key
from tests.api.server import NOW_S, window_record

pytestmark = pytest.mark.anyio

NODE = "rack/7 <b>"
AT = "2026-09-21T14:13:20Z"


async def blame(api, job_id, *first_steps, host=NODE, slowdown=1.5, ago_s=0.0):
    """Save windows that lost 0.5 GPU-hours to the host of worker (1, 0)."""
    await api.register(job_id)
    key = job_key("default", job_id)
    with api.store.write() as conn:
        hosts.save(conn, key, 1, {(0, 0): "another", (1, 0): host})
        hosts.add_to_run(conn, key, 1, ["another", host])
    for first_step in first_steps:
        record = dataclasses.replace(window_record(first_step), updated_s=NOW_S - ago_s)
        api.save_window(record, job_id)
        with api.store.write() as conn:
            lost = [Loss("host", host, 1800.0, slowdown=slowdown)]
            fleet.save_losses(conn, key, record, lost, num_gpus=4)


async def listed(api, **query):
    answer = await api.client.get("/api/v1/hosts", params=query)
    assert answer.status_code == 200
    return answer.json()


async def test_host_is_listed_after_two_jobs_blamed_it(api):
    await blame(api, "one", 0, 2)
    assert await listed(api) == {"items": [], "next_cursor": None}
    await blame(api, "two", 0, slowdown=1.8)
    [item] = (await listed(api))["items"]
    assert item == {
        "host": NODE,
        "jobs": 2,
        "worst_slowdown": 1.8,
        "last_seen_at": AT,
        "gpu_hours_lost": pytest.approx(1.5),
    }
    assert len((await listed(api, min_jobs=1))["items"]) == 1


async def test_old_blames_are_not_counted(api):
    await blame(api, "one", 0)
    await blame(api, "two", 0, ago_s=40 * 86_400)
    assert (await listed(api))["items"] == []
    assert len((await listed(api, days=60))["items"]) == 1


async def test_hosts_come_in_pages(api):
    for job_id in ("one", "two"):
        await blame(api, job_id, 0, host="b")
        await blame(api, job_id, 2, host="a")
    first = await listed(api, limit=1)
    second = await listed(api, limit=1, cursor=first["next_cursor"])
    assert [page["items"][0]["host"] for page in (first, second)] == ["a", "b"]
    assert second["next_cursor"] is None


async def test_host_has_its_runs(api):
    await blame(api, "blamer", 0, 4)
    await blame(api, "other")
    path = "/api/v1/hosts/rack%2F7%20%3Cb%3E"
    found = (await api.client.get(path)).json()
    assert {name: found[name] for name in ("host", "jobs_blamed", "worst_slowdown")} == {
        "host": NODE,
        "jobs_blamed": 1,
        "worst_slowdown": 1.5,
    }
    assert found["gpu_hours_lost"] == pytest.approx(1.0)
    blamer, other = found["runs"]
    assert blamer == {
        "job_id": "blamer",
        "epoch": 1,
        "name": "blamer",
        "began_at": AT,
        "ended_at": None,
        "last_data_at": None,
        "workers": [{"dp_rank": 1, "stage": 0}],
        "num_workers": 1,
        "blame": {
            "windows": 2,
            "first_window": "1-0",
            "last_window": "1-4",
            "worst_slowdown": 1.5,
            "gpu_hours_lost": pytest.approx(1.0),
            "last_seen_at": AT,
        },
    }
    assert (other["job_id"], other["blame"]) == ("other", None)


async def test_restarted_run_ends_when_the_next_begins(api):
    await blame(api, "one", 0)
    api.clock.now_s += 60
    await api.register("one", run_key="run-2")
    [run] = (await api.client.get("/api/v1/hosts/another")).json()["runs"]
    assert (run["epoch"], run["ended_at"]) == (1, "2026-09-21T14:14:20Z")


async def test_unknown_host_is_not_found(api):
    await blame(api, "one", 0)
    answer = await api.client.get("/api/v1/hosts/anoth")
    assert (answer.status_code, answer.json()["code"]) == (404, "host_not_found")
