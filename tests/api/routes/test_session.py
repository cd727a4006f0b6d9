from typing import Any

import pytest
from sqlalchemy import select

from app.store.tables import sessions
from tests.api.server import NOW_S, TOKEN, running

pytestmark = pytest.mark.anyio

PATH = "/api/v1/session"


async def test_sign_in_sets_an_http_only_cookie(api):
    async with api.anonymous_client() as client:
        answer = await client.post(PATH, json={"token": TOKEN})
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/" in cookie
        assert "Secure" not in cookie
        assert TOKEN not in cookie
        assert (await client.get(PATH)).json()["authenticated"] is True


async def test_session_has_the_scopes_of_its_token(api):
    _, token = api.token("read")
    async with api.anonymous_client() as client:
        await client.post(PATH, json={"token": token})
        assert (await client.get(PATH)).json()["scopes"] == ["read"]


async def test_over_https_the_cookie_is_secure(api):
    async with api.anonymous_client() as client:
        answer = await client.post("https://localhost" + PATH, json={"token": TOKEN})
    assert "Secure" in answer.headers["set-cookie"]
    assert answer.headers["strict-transport-security"]


async def test_sign_out_deletes_the_cookie(api):
    async with api.anonymous_client(headers={"sec-fetch-site": "same-origin"}) as client:
        await client.post(PATH, json={"token": TOKEN})
        assert (await client.delete(PATH)).status_code == 204
        assert (await client.get(PATH)).json()["authenticated"] is False


async def test_session_expires(api):
    async with api.anonymous_client() as client:
        await client.post(PATH, json={"token": TOKEN})
        api.clock.now_s = NOW_S + 12 * 3600 + 1
        assert (await client.get(PATH)).json()["authenticated"] is False


async def test_sign_in_is_limited_after_ten_wrong_tokens(api):
    async with api.anonymous_client() as client:
        for _ in range(10):
            assert (await client.post(PATH, json={"token": "pl_no"})).status_code == 401
        answer = await client.post(PATH, json={"token": TOKEN})
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.json()["code"] == "too_many_requests"


@pytest.mark.parametrize(
    "origin", [{"origin": "http://evil.test"}, {"sec-fetch-site": "cross-site"}]
)
async def test_sign_in_from_another_site_is_refused(api, origin):
    async with api.anonymous_client(headers=origin) as client:
        assert (await client.post(PATH, json={"token": TOKEN})).status_code == 403


@pytest.mark.parametrize(
    "cookie", ["=", "x", ".", "1.", "\u0661.x", f"{'9' * 5000}.x", "\x01", "a.b.c", '"', "é.é"]
)
async def test_malformed_cookies_are_no_session(api, cookie):
    async with api.anonymous_client(
        headers={b"cookie": b"paceline_session=" + cookie.encode()}
    ) as client:
        assert (await client.get(PATH)).json()["authenticated"] is False


async def test_price_is_shown_in_a_session_if_set(database_url):
    async with (
        running(database_url, gpu_hour_price=2.4, currency="EUR ") as api,
        api.anonymous_client() as client,
    ):
        assert "price" not in (await client.get(PATH)).json()
        shown = (await api.client.get(PATH)).json()
        assert shown["price"] == {"per_gpu_hour": 2.4, "currency": "EUR "}


async def test_sign_out_ends_the_session_on_the_server(api):
    async with api.anonymous_client(headers={"sec-fetch-site": "same-origin"}) as client:
        await client.post(PATH, json={"token": TOKEN})
        stolen = dict(client.cookies)
        assert (await client.delete(PATH)).status_code == 204
    async with api.anonymous_client(cookies=stolen) as thief:
        assert (await thief.get(PATH)).json()["authenticated"] is False
        assert (await thief.get("/api/v1/jobs")).status_code == 401


async def test_ended_session_is_refused_within_five_seconds_by_every_process(database_url):
    async with (
        running(database_url) as one,
        running(database_url) as other,
        one.anonymous_client(headers={"sec-fetch-site": "same-origin"}) as client,
    ):
        await client.post(PATH, json={"token": TOKEN})
        async with other.anonymous_client(cookies=dict(client.cookies)) as elsewhere:
            assert (await elsewhere.get("/api/v1/jobs")).status_code == 200
            await client.delete(PATH)
            other.monotonic.now_s += 4.0
            assert (await elsewhere.get("/api/v1/jobs")).status_code == 401


async def test_sessions_are_listed_with_who_from_where_and_when(api):
    async with api.anonymous_client(headers={"user-agent": "Firefox on the ward"}) as client:
        await client.post(PATH, json={"token": TOKEN})
        [found] = (await client.get("/api/v1/sessions")).json()["items"]
    assert found["token_name"] == "root token"
    assert found["user_agent"] == "Firefox on the ward"
    assert found["address"] == "127.0.0.1"
    assert found["is_current"] is True
    assert found["created_at"] < found["expires_at"]
    await api.app.state.service.auth.close()  # uses are recorded in the background
    [found] = (await api.client.get("/api/v1/sessions")).json()["items"]
    assert found["is_current"] is False
    assert found["last_used_at"] is not None


async def test_sessions_are_seen_and_ended_by_their_token_and_by_admins(api):
    tokens = {name: api.token(*scopes)[1] for name, scopes in SCOPES_OF.items()}
    elsewhere = api.token("admin", "read", project="elsewhere")[1]
    async with api.anonymous_client() as client:
        for token in (TOKEN, tokens["one"], tokens["two"]):
            await client.post(PATH, json={"token": token})
    listed = {}
    for name, token in {**tokens, "root": TOKEN, "elsewhere": elsewhere}.items():
        async with api.client_with(token) as client:
            listed[name] = [
                each["session_id"]
                for each in (await client.get("/api/v1/sessions")).json()["items"]
            ]
    assert {name: len(found) for name, found in listed.items()} == {
        "one": 1, "two": 1, "admin": 2, "root": 3, "elsewhere": 0,
    }  # fmt: skip
    [of_two] = listed["two"]
    async with api.client_with(tokens["one"]) as client:
        answer = await client.delete(f"/api/v1/sessions/{of_two}")
        assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")
    async with api.client_with(tokens["admin"]) as client:
        assert (await client.delete(f"/api/v1/sessions/{of_two}")).status_code == 204
        assert (await client.delete(f"/api/v1/sessions/{of_two}")).status_code == 204
        assert len((await client.get("/api/v1/sessions")).json()["items"]) == 1
        [entry] = (await client.get("/api/v1/audit?object_kind=session")).json()["items"]
    assert (entry["action"], entry["object_id"]) == ("session.end", of_two)


SCOPES_OF = {"one": ["read"], "two": ["read"], "admin": ["admin", "read"]}


async def test_cookie_of_another_root_token_is_no_session(api, tmp_path):
    async with api.anonymous_client() as client:
        await client.post(PATH, json={"token": TOKEN})
        [cookie] = dict(client.cookies).values()
    session_id, _, secret = cookie.partition(".")
    for wrong in (f"{session_id}.{'x' * 43}", f"{'0' * 16}.{secret}"):
        async with api.anonymous_client(cookies={"paceline_session": wrong}) as client:
            assert (await client.get(PATH)).json()["authenticated"] is False
    settings: dict[str, Any] = {"token": "pl_" + "n" * 40}
    async with (
        running(f"sqlite:///{tmp_path / 'paceline.db'}", **settings) as other,
        other.anonymous_client(cookies={"paceline_session": cookie}) as client,
    ):
        assert (await client.get(PATH)).json()["authenticated"] is False


async def test_a_token_has_a_hundred_sessions_at_most(api):
    async with api.anonymous_client() as client:
        for _ in range(102):
            await client.post(PATH, json={"token": TOKEN})
            api.clock.now_s += 1
    found = (await api.client.get("/api/v1/sessions")).json()["items"]
    assert len(found) == 100


async def test_database_and_answers_hold_no_cookie(api):
    async with api.anonymous_client() as client:
        await client.post(PATH, json={"token": TOKEN})
        [cookie] = dict(client.cookies).values()
        listed = (await client.get("/api/v1/sessions")).text
    with api.store.read() as conn:
        stored = str(conn.execute(select(sessions)).all())
    assert cookie.partition(".")[2] not in listed + stored
