"""The canary in a real `paceline serve`, and what it must not be seen in."""

import time
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from app.alerts.rule import default_rules
from app.api.http.auth import Authenticator
from app.api.http.principal import CANARY
from app.errors import InvalidRequest
from app.monitor import observe
from app.store import hosts, projects, windows
from app.store.alerting import alert_rules
from app.store.database import Store
from app.store.retention import RetentionLimits, policies
from app.trace.job import CANARY_PROJECT, is_project_name, job_key
from app.watch import canary as watched
from tests.api.server import JOB, NOW_S, window_record
from tests.api.server import running as running_api
from tests.browser.paceline import running
from tests.browser.waiting import wait_until


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server whose canary was found twice; nobody else pushes anything."""
    directory = tmp_path_factory.mktemp("canary")
    settings = {"canary_every_s": "10", "limit_jobs": "1", "consumers_dead_after_s": "600"}
    with running("serve", directory, **settings) as server:
        wait_until(lambda: server.get("/status")["canary"]["state"] == "found", "it is found")
        wait_until(lambda: metrics(server).get("paceline_canary_found_total", 0) >= 2, "twice")
        yield server, directory / "data" / "paceline.db"


def metrics(server):
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


@pytest.mark.nightly
def test_canary_is_found_and_its_age_is_on_the_status_page_and_in_metrics(served):
    server, _ = served
    canary = server.get("/status")["canary"]
    assert canary["detail"] is None
    assert 0 <= canary["age_s"] < 120
    assert 0 < canary["took_s"] < 60
    found = metrics(server)
    assert 0 <= found["paceline_canary_age_seconds"] < 120
    assert found["paceline_consumer_turn_age_seconds"] < 60
    assert found['paceline_service_down{part="canary"}'] == 0


@pytest.mark.nightly
def test_canary_is_on_no_page_and_in_no_alert(served):
    server, _ = served
    assert server.get("/jobs")["items"] == []
    assert server.get("/hosts")["items"] == []
    assert server.get("/search", q="canary")["items"] == []
    assert server.get("/alerts")["items"] == []
    assert server.get("/alerts/transitions")["items"] == []
    assert server.get("/deliveries")["items"] == []


@pytest.mark.nightly
def test_canary_raises_no_alert_and_is_kept_for_an_hour(served):
    _, path = served
    store = Store(f"sqlite:///{path}")
    with store.read() as conn:
        assert projects.names(conn) == ["default"]
        [kept] = [
            each
            for each in policies(conn, RetentionLimits(14.0, 180.0))
            if each.project == CANARY_PROJECT
        ]
        jobs = conn.exec_driver_sql("SELECT DISTINCT job_id FROM windows").scalars().all()
        assert {each.partition("/")[0] for each in jobs} == {CANARY_PROJECT}
        for table in ("alerts", "alert_events", "alert_groups"):
            assert conn.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0
    store.close()
    assert kept.limits == RetentionLimits(1 / 24, 1 / 24)


@pytest.mark.anyio
async def test_a_run_of_the_canary_is_in_no_list_figure_alert_or_quota(new_url):
    async with (
        running_api(new_url(), limit_jobs=1) as api,
        api.client_with(api.app.state.service.auth.canary_token) as canary,
    ):
        with api.store.write() as conn:
            projects.create_canary(conn, now_s=NOW_S)
        for job in ("canary-1", "canary-2"):
            assert (await canary.put(f"/api/v1/jobs/{job}", json=JOB)).status_code == 201
            with api.store.write() as conn:
                windows.save(conn, job_key(CANARY_PROJECT, job), window_record(slowdown=2.0))
                hosts.add_to_run(conn, job_key(CANARY_PROJECT, job), 1, ["canary-host"])
        with api.store.read() as conn:
            assert CANARY_PROJECT not in projects.names(conn)
            assert alert_rules.load_or_default(conn, CANARY_PROJECT, default_rules()) == ()
        for path in ("jobs", "hosts", "alerts"):
            assert (await api.client.get(f"/api/v1/{path}")).json()["items"] == []
        assert "canary-" not in (await api.client.get("/api/v1/fleet")).text
        shown = (await api.client.get("/metrics")).text
        assert "paceline_gpus 0.0\n" in shown
        assert "canary-" not in shown
        await api.register("mine")


def test_the_straggler_is_what_the_diagnosis_names_and_anything_else_is_missing():
    record = watched.simulated_job().record(range(watched.NUM_STEPS))
    result = observe(record.window()).result
    watched._check(result)
    with pytest.raises(watched.CanaryNotFound, match="has no finding"):
        watched._check(replace(result, findings=()))
    assert result.findings
    first = result.findings[0]
    wrong_ones = [
        replace(first, cause="gc-pause"),
        replace(first, culprits=(replace(first.culprits[0], dp_rank=0),)),
        replace(first, culprits=()),
    ]
    for wrong in wrong_ones:
        with pytest.raises(watched.CanaryNotFound, match="blames"):
            watched._check(replace(result, findings=(wrong,)))


NOBODY: Any = None  # neither is used


def test_no_user_can_have_the_project_of_the_canary(tmp_path):
    assert not is_project_name(CANARY_PROJECT)
    with pytest.raises(InvalidRequest):
        projects.create_if_missing(NOBODY, CANARY_PROJECT, now_s=0.0)


@pytest.mark.anyio
async def test_the_canarys_token_is_of_this_process_and_of_its_project_only():
    first, second = (
        Authenticator("pl_" + "t" * 40, NOBODY, session_s=1, now_s=time.time, monotonic=time.time)
        for _ in range(2)
    )
    found = await first.of_token(first.canary_token)
    assert found is not None
    assert found[0] == CANARY
    assert CANARY.project == CANARY_PROJECT
    assert CANARY.scopes == {"ingest", "read"}
    assert await first.of_token(second.canary_token) is None
