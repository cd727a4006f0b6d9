"""One worker over HTTP."""

import pytest

from app.store import hosts as store_hosts
from app.store import runs
from app.trace.job import Placement
from tests.api import recorded
from tests.api.server import KEY

pytestmark = pytest.mark.anyio

JOB = "/api/v1/jobs/llm-70b"


@pytest.fixture
async def closed(api):
    """An API with two closed windows of 2 x 2 workers and an open one; three have hosts."""
    await api.register()
    hosts = {(0, 0): "host-1", (0, 1): "host-1", (1, 1): "host-2"}
    recorded.save(api, recorded.window(6), recorded.window(8), recorded.window(10, state="open"))
    with api.store.write() as conn:
        store_hosts.save(conn, KEY, 1, hosts)
    return api


async def test_a_worker_has_the_figures_of_its_window(closed):
    found = (await closed.client.get(f"{JOB}/workers/0-1", params={"window": "1-8"})).json()
    result = (await closed.client.get(f"{JOB}/windows/1-8")).json()
    assert found["window"] == "1-8"
    assert found["slowdown"] == result["worker_slowdown"][0][1]
    assert found["job_slowdown"] == result["slowdown"]
    assert found["launch_delay_s"] == result["launch_delay"]["by_worker"][0][1]
    assert found["num_workers"] == 4
    # Stage 1 computes twice as long as stage 0, on both replicas.
    assert found["place"] == 1
    assert (await closed.client.get(f"{JOB}/workers/0-0")).json()["place"] == 3


async def test_worker_lists_others_on_its_host(closed):
    found = (await closed.client.get(f"{JOB}/workers/0-1")).json()
    assert found["host"] == "host-1"
    assert [(each["dp_rank"], each["stage"]) for each in found["on_its_host"]] == [(0, 0)]
    unknown = (await closed.client.get(f"{JOB}/workers/1-0")).json()
    assert (unknown["host"], unknown["on_its_host"]) == (None, [])


async def test_worker_has_the_drops_of_its_recorders(closed):
    silent = (await closed.client.get(f"{JOB}/workers/0-1")).json()
    assert (silent["dropped"], silent["rack"], silent["switch"]) == (None, None, None)
    with closed.store.write() as conn:
        runs.save_drops(conn, KEY, 1, [(0, 0, 0, 3), (1, 0, 0, 4), (2, 0, 1, 0)])
        placed = {(0, 0): Placement("r1", "s1"), (0, 1): Placement(switch="s2")}
        store_hosts.save(conn, KEY, 1, {(0, 0): "host-1"}, placed)
    first, second, third = [
        (await closed.client.get(f"{JOB}/workers/{each}")).json() for each in ("0-0", "0-1", "1-0")
    ]
    assert (first["dropped"], first["rack"], first["switch"]) == (7, "r1", "s1")
    assert (second["dropped"], second["rack"], second["switch"]) == (0, None, "s2")
    assert (third["dropped"], third["rack"]) == (None, None)
    shown = (await closed.client.get(JOB)).json()["drops"]
    assert shown == {
        "total": 7,
        "num_workers": 1,
        "worst": [{"dp_rank": 0, "stage": 0, "dropped": 7}],
    }


async def test_course_ends_at_the_shown_window(closed):
    async def rows(window):
        path = f"{JOB}/workers/0-1/charts/course"
        figure = (await closed.client.get(path, params={"window": window})).json()
        return [row[0] for row in figure["meta"]["table"]["rows"]]

    assert await rows("recent") == ["1-6", "1-8", "1-10"]
    assert await rows("latest") == ["1-6", "1-8"]
    assert await rows("1-8") == ["1-6", "1-8"]


async def test_operations_are_those_of_the_last_closed_window(closed):
    figure = (await closed.client.get(f"{JOB}/workers/0-1/charts/ops")).json()
    rows = {row[0]: row for row in figure["meta"]["table"]["rows"]}
    assert rows["Forward compute"][1:4] == [2, "2 s", "2 s"]
    answer = await closed.client.get(f"{JOB}/workers/0-1/charts/ops", params={"window": "1-10"})
    assert answer.status_code == 409


async def test_worker_has_no_figures_before_the_first_window(api):
    await api.register()
    found = (await api.client.get(f"{JOB}/workers/1-1")).json()
    assert found["sentence"] == "dp 1, stage 1 is not measured yet."
    figures = ("window", "slowdown", "place", "job_slowdown", "launch_delay_s", "verdict")
    assert all(found[name] is None for name in figures)
    answer = await api.client.get(f"{JOB}/workers/1-1/charts/course")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_measured")


async def test_unknown_worker_is_not_found(closed):
    for worker in ("2-0", "0-2", "999999999-0"):
        for path in ("", "/charts/course", "/charts/ops"):
            answer = await closed.client.get(f"{JOB}/workers/{worker}{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "worker_not_found")


async def test_unknown_job_or_window_is_not_found(closed):
    assert (await closed.client.get("/api/v1/jobs/none/workers/0-0")).status_code == 404
    answer = await closed.client.get(f"{JOB}/workers/0-0", params={"window": "1-77"})
    assert answer.status_code == 404
    assert (await closed.client.get(f"{JOB}/workers/first")).status_code == 422


async def test_workers_by_rack_are_a_grid_of_hosts(closed):
    placed = {(0, 0): Placement("rack-7", None), (0, 1): Placement("rack-7", None)}
    hosts = {(0, 0): "host-1", (0, 1): "host-1", (1, 0): "host-2", (1, 1): "host-2"}
    with closed.store.write() as conn:
        store_hosts.save(conn, KEY, 1, hosts, placed)
    path = f"{JOB}/windows/latest/charts/workers"
    figure = (await closed.client.get(path, params={"sort": "rack"})).json()
    rows = {row[0]: row[1:3] for row in figure["meta"]["table"]["rows"]}
    assert rows == {"host-1": ["rack-7", 2], "host-2": [None, 2]}
