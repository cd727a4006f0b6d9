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


async def test_hosts_are_listed_slow_ones_first(api):
    await blame(api, "one", 0, ago_s=60.0)
    await blame(api, "one", 2)
    assert (await listed(api, min_jobs=2))["items"] == []
    await blame(api, "two", 0, slowdown=1.8)
    found = await listed(api)
    assert (found["total"], found["total_slow"], found["next_cursor"]) == (2, 1, None)
    slow, other = found["items"]
    assert slow == {
        "host": NODE,
        **{"jobs": 2, "jobs_on_it": 2, "workers": 2, "worst_slowdown": 1.8},
        "slow_since_at": "2026-09-21T14:12:20Z",
        "last_seen_at": AT,
        "last_data_at": None,
        "gpu_hours_lost": pytest.approx(1.5),
    }
    assert (other["host"], other["jobs"], other["jobs_on_it"], other["workers"]) == (
        "another", 0, 2, 2
    )  # fmt: skip
    assert other["worst_slowdown"] is other["slow_since_at"] is other["last_seen_at"] is None
    assert [each["host"] for each in (await listed(api, min_jobs=2))["items"]] == [NODE]


async def test_pages_have_every_host_once_in_the_same_order(api):
    for job_id, host in (("one", "b"), ("two", "b"), ("three", "a"), ("four", "zz")):
        await blame(api, job_id, 0, host=host)
    await api.register("quiet")
    with api.store.write() as conn:
        hosts.add_to_run(conn, job_key("default", "quiet"), 1, ["c", "d", "e"])
    whole = [each["host"] for each in (await listed(api))["items"]]
    assert whole == ["b", "a", "zz", "another", "c", "d", "e"]
    for limit in (1, 2, 3, 4):
        page = await listed(api, limit=limit)
        found = [each["host"] for each in page["items"]]
        while page["next_cursor"]:
            page = await listed(api, limit=limit, cursor=page["next_cursor"])
            found += [each["host"] for each in page["items"]]
        assert found == whole, limit


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
        **{"job_id": "blamer", "epoch": 1, "name": "blamer"},
        **{"began_at": AT, "ended_at": None, "last_data_at": None},
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
