"""Tokens over HTTP: created once, listed without secrets, replaced without a gap."""

import json

import pytest

pytestmark = pytest.mark.anyio

PATH = "/api/v1/tokens"


async def made(api, **changes):
    answer = await api.client.post(PATH, json={"name": "a", "scopes": ["read"], **changes})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_secret_of_a_token_is_shown_once(api):
    created = await made(api, name="cluster A", scopes=["read", "ingest"], expires_days=1)
    text = created.pop("token")
    assert text.startswith(f"pl_{created['token_id']}_")
    listed = (await api.client.get(PATH)).json()
    assert listed == {"items": [created], "next_cursor": None}
    assert (created["scopes"], created["job"]) == (["ingest", "read"], None)
    assert created["expires_at"] == "2026-09-22T14:13:20Z"
    with api.store.read() as conn:
        dump = "\n".join(conn.connection.driver_connection.iterdump())
    assert text.rpartition("_")[2] not in dump


async def test_a_token_is_replaced_without_a_gap(api):
    old, new = await made(api), await made(api)
    async with api.client_with(old["token"]) as before, api.client_with(new["token"]) as after:
        for client in (before, after):
            assert (await client.get("/api/v1/jobs")).status_code == 200
        for _ in range(2):
            answer = await api.client.delete(f"{PATH}/{old['token_id']}")
            assert answer.status_code == 204
        assert (await before.get("/api/v1/jobs")).status_code == 401
        assert (await after.get("/api/v1/jobs")).status_code == 200
    listed = (await api.client.get(PATH)).json()["items"]
    revoked = {token["token_id"]: token["revoked_at"] for token in listed}
    assert revoked[old["token_id"]] == "2026-09-21T14:13:20Z"
    assert revoked[new["token_id"]] is None


async def test_pages_hold_every_token_once_in_order(api):
    ids = sorted([(await made(api))["token_id"] for _ in range(5)])
    seen, cursor = [], None
    for _ in range(3):
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await api.client.get(PATH, params=query)).json()
        seen += [token["token_id"] for token in page["items"]]
        cursor = page["next_cursor"]
    assert seen == ids
    assert cursor is None


BAD = {
    "no scopes": {"name": "a", "scopes": []},
    "unknown scope": {"name": "a", "scopes": ["fly"]},
    "no name": {"scopes": ["read"]},
    "another project": {"name": "a", "scopes": ["read"], "project": "research"},
    "a job that cannot be": {"name": "a", "scopes": ["ingest"], "job": "a/b"},
    "more than ingest for one job": {"name": "a", "scopes": ["ingest", "read"], "job": "b"},
    "over already": {"name": "a", "scopes": ["read"], "expires_days": 0},
    "over after true days": {"name": "a", "scopes": ["read"], "expires_days": True},
    "after all time": {"name": "a", "scopes": ["read"], "expires_days": 1e9},
    "a name on two lines": {"name": "a\nb", "scopes": ["read"]},
    "a name that is no text": {"name": "\ud800", "scopes": ["read"]},
}


@pytest.mark.parametrize("what", BAD)
async def test_invalid_token_request_gets_422(api, what):
    body = json.dumps(BAD[what])  # ASCII, which holds what UTF-8 cannot
    headers = {"content-type": "application/json"}
    answer = await api.client.post(PATH, content=body, headers=headers)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid"


async def test_token_without_read_cannot_sign_in(api):
    created = await made(api, scopes=["ingest"])
    async with api.anonymous_client() as page:
        answer = await page.post("/api/v1/session", json={"token": created["token"]})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
