"""Audit entries: written with each change, read by admins, without secrets."""

import pytest

from tests.api.alerting import add_receiver, fire
from tests.api.server import TOKEN

pytestmark = pytest.mark.anyio

PATH = "/api/v1/audit"


async def entries(client, **params):
    answer = await client.get(PATH, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def test_entry_has_actor_action_and_time(api):
    token_id, text = api.token("admin")
    async with api.client_with(text) as client:
        made = await client.post("/api/v1/tokens", json={"name": "cluster A", "scopes": ["read"]})
        [entry] = await entries(client)
    assert entry.pop("audit_id") == 1
    assert entry == {
        "at": "2026-09-21T14:13:20Z",
        "actor": f"made by a test ({token_id})",
        "action": "token.create",
        "object_kind": "token",
        "object_id": made.json()["token_id"],
        "detail": {"name": "cluster A", "scopes": ["read"]},
    }


async def test_token_and_retention_changes_are_audited_once(api):
    made = (await api.client.post("/api/v1/tokens", json={"name": "a", "scopes": ["read"]})).json()
    for _ in range(2):
        await api.client.delete(f"/api/v1/tokens/{made['token_id']}")
    days = {"raw_days": 3.0, "results_days": None}
    await api.client.put("/api/v1/settings/retention", json=days)
    found = await entries(api.client)
    actions = [entry["action"] for entry in found]
    assert actions == ["retention.set", "token.revoke", "token.create"]
    assert found[0]["detail"] == {"changes": {"raw_days": {"old": None, "new": 3.0}}}
    days = {"raw_days": 5.0, "results_days": 400.0}
    await api.client.put("/api/v1/settings/retention", json=days)
    assert (await entries(api.client))[0]["detail"]["changes"] == {
        "raw_days": {"old": 3.0, "new": 5.0},
        "results_days": {"old": None, "new": 400.0},
    }
    assert {entry["actor"] for entry in found} == {"root token (root)"}
    shown = (await api.client.get(PATH)).text
    assert made["token"] not in shown
    assert TOKEN not in shown


async def test_refused_change_is_not_audited(api):
    await api.client.post("/api/v1/tokens", json={"name": "a", "scopes": ["read"], "job": "b"})
    await api.client.delete("/api/v1/tokens/x7Kq2mZ0aB")
    await api.client.put("/api/v1/rules", content="rules: 3", headers={"content-type": "text/yaml"})
    assert await entries(api.client) == []


async def test_the_audit_is_filtered_and_paged(api):
    await api.register("job-a")
    state = fire(api)
    add_receiver(api)
    token_id, text = api.token("write", "read")
    async with api.client_with(text) as client:
        await client.post(f"/api/v1/alerts/{state.fingerprint}/acknowledge")
    await api.client.post("/api/v1/receivers/ep_1/enable")
    await api.client.delete("/api/v1/rules")
    [of_alert] = await entries(api.client, object_kind="alert")
    assert of_alert["actor"] == f"made by a test ({token_id})"
    [by_actor] = await entries(api.client, actor=of_alert["actor"])
    assert by_actor == of_alert
    first = (await api.client.get(PATH, params={"limit": 2})).json()
    rest = (await api.client.get(PATH, params={"cursor": first["next_cursor"]})).json()
    kinds = [entry["object_kind"] for entry in first["items"] + rest["items"]]
    assert kinds == ["rules", "endpoint", "alert"]


async def test_session_is_audited_under_its_token(api):
    token_id, text = api.token("admin", "read")
    async with api.anonymous_client() as page:
        await page.post("/api/v1/session", json={"token": text})
        origin = {"sec-fetch-site": "same-origin"}
        await page.delete("/api/v1/rules", headers=origin)
    [entry] = await entries(api.client)
    assert entry["actor"] == f"made by a test ({token_id})"
