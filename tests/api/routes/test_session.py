import shutil

import pytest

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


async def test_a_wrong_token_is_refused(api):
    async with api.anonymous_client() as client:
        answer = await client.post(PATH, json={"token": "pl_" + "x" * 40})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


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


async def test_price_is_shown_in_a_session_if_set(empty_database, tmp_path):
    url = f"sqlite:///{shutil.copy(empty_database, tmp_path / 'priced.db')}"
    async with (
        running(url, gpu_hour_price=2.4, currency="EUR ") as api,
        api.anonymous_client() as client,
    ):
        assert "price" not in (await client.get(PATH)).json()
        shown = (await api.client.get(PATH)).json()
        assert shown["price"] == {"per_gpu_hour": 2.4, "currency": "EUR "}


async def test_price_is_null_if_not_set(api):
    assert (await api.client.get(PATH)).json()["price"] is None
