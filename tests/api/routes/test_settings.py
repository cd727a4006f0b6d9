"""Settings of the service without secrets, and retention of a project."""

from typing import Any
from urllib.parse import urlsplit

import pytest

from app.store import retention
from app.store.retention import RetentionLimits
from tests.api.server import TOKEN, running

pytestmark = pytest.mark.anyio

PATH = "/api/v1/settings"


async def keep(client, raw_days, results_days):
    days = {"raw_days": raw_days, "results_days": results_days}
    return await client.put(f"{PATH}/retention", json=days)


async def test_settings_route_shows_the_configured_values(database_url):
    more: dict[str, Any] = {"window_steps": 16, "silent_after_s": 42.0, "keep_raw_days": 3.0}
    async with running(database_url, **more) as api:
        answer = await api.client.get(PATH)
    found = answer.json()
    assert (found["window_steps"], found["silent_after_s"]) == (16, 42.0)
    assert found["retention"]["usual_raw_days"] == 3.0
    assert found["project"] == "default"
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    ("given", "url", "reach"),
    [
        ({}, "http://127.0.0.1:8642", "loopback"),
        ({"host": "10.0.0.7", "port": 9000}, "http://10.0.0.7:9000", "host"),
        ({"host": "0.0.0.0"}, "http://gpu-head-1:8642", "host"),
        ({"public_url": "https://p.example"}, "https://p.example", "public"),
    ],
)
async def test_settings_name_where_links_in_messages_point(
    database_url, monkeypatch, given, url, reach
):
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-head-1")
    async with running(database_url, public=True, **given) as api:
        found = (await api.client.get(PATH)).json()
        named = await api.client.get(PATH, headers={"host": urlsplit(url).netloc})
    assert (found["pages_url"], found["pages_url_reach"]) == (url, reach)
    assert named.status_code == 200  # a link that the server refuses is none


async def test_retention_can_be_set_and_reset(api):
    changed = (await keep(api.client, 30.0, None)).json()
    assert changed == {
        **{"raw_days": 30.0, "results_days": 180.0, "max_gb": None, "stored_gb": 0.0},
        **{"has_own_raw_days": True, "has_own_results_days": False, "has_own_max_gb": False},
        **{"usual_raw_days": 14.0, "usual_results_days": 180.0, "usual_max_gb": None},
    }
    assert (await api.client.get(PATH)).json()["retention"] == changed
    with api.store.read() as conn:
        [policy] = retention.policies(conn, RetentionLimits(14.0, 180.0))
    assert (policy.project, policy.limits) == ("default", RetentionLimits(30.0, 180.0))
    again = (await keep(api.client, None, None)).json()
    assert (again["raw_days"], again["has_own_raw_days"]) == (14.0, False)


async def test_retention_of_one_project_does_not_affect_another(api):
    _, token = api.token("admin", "read", project="research")
    async with api.client_with(token) as other:
        assert (await keep(other, 2.0, 3.0)).status_code == 200
        assert (await other.get(PATH)).json()["retention"]["raw_days"] == 2.0
    assert (await api.client.get(PATH)).json()["retention"]["raw_days"] == 14.0


async def test_quota_can_be_set_alone_stays_when_left_out_and_is_reset_by_null(api):
    body = {"raw_days": None, "results_days": None}
    found = await api.client.put(f"{PATH}/retention", json=body | {"max_gb": 1.5})
    assert (found.json()["max_gb"], found.json()["has_own_max_gb"]) == (1.5, True)
    assert (await keep(api.client, 30.0, None)).json()["max_gb"] == 1.5
    found = await api.client.put(f"{PATH}/retention", json=body | {"max_gb": None})
    assert (found.json()["max_gb"], found.json()["has_own_max_gb"]) == (None, False)


@pytest.mark.parametrize("most", [0, -1, 1e10, "2"])
async def test_invalid_quotas_are_refused(api, most):
    body = {"raw_days": None, "results_days": None, "max_gb": most}
    answer = await api.client.put(f"{PATH}/retention", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "body.max_gb"


@pytest.mark.parametrize("days", [0, -1, 0.5, 1e9, "30", True])
async def test_invalid_days_are_refused(api, days):
    answer = await keep(api.client, days, None)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "body.raw_days"
