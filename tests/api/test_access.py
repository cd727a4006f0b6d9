"""Every operation against every caller who may not use it."""

import pytest

from app.api.auth import Access
from tests.api.server import NOW_S, TOKEN, Clock, json_batch

pytestmark = pytest.mark.anyio

# What a probe or a person may ask without being known.
OPEN = {"get_health", "get_readiness", "get_session", "sign_in"}
# Each operation with a request that would be right, were the caller known.
GUARDED = {
    "register_job": ("PUT", "/api/v1/jobs/llm-70b"),
    "end_job": ("POST", "/api/v1/jobs/llm-70b/end"),
    "list_jobs": ("GET", "/api/v1/jobs"),
    "get_job": ("GET", "/api/v1/jobs/llm-70b"),
    "push_ops": ("POST", "/api/v1/jobs/llm-70b/ops"),
    "list_windows": ("GET", "/api/v1/jobs/llm-70b/windows"),
    "get_window": ("GET", "/api/v1/jobs/llm-70b/windows/latest"),
    "get_window_workers": ("GET", "/api/v1/jobs/llm-70b/windows/latest/workers"),
    "get_window_timeline": ("GET", "/api/v1/jobs/llm-70b/windows/latest/timeline"),
    "get_window_critical_path": ("GET", "/api/v1/jobs/llm-70b/windows/latest/critical-path"),
    "ask_what_if": ("POST", "/api/v1/jobs/llm-70b/windows/latest/what-if"),
    "list_steps": ("GET", "/api/v1/jobs/llm-70b/steps"),
    "get_window_chart": ("GET", "/api/v1/jobs/llm-70b/windows/latest/charts/workers"),
    "get_steps_chart": ("GET", "/api/v1/jobs/llm-70b/charts/steps"),
    "get_headline": ("GET", "/api/v1/jobs/llm-70b/headline"),
    "list_alerts": ("GET", "/api/v1/alerts"),
    "stream_events": ("GET", "/api/v1/events"),
    "sign_out": ("DELETE", "/api/v1/session"),
}
CHANGING = sorted(name for name, (method, _) in GUARDED.items() if method != "GET")


def session(**changes):
    access = Access(
        changes.get("token", TOKEN), session_s=changes.get("session_s", 3600), now_s=Clock()
    )
    return {"cookie": f"paceline_session={access.new_session()}"}


UNKNOWN = {
    "nobody": {},
    "wrong token": {"authorization": "Bearer pl_" + "x" * 40},
    "no token in the header": {"authorization": "Bearer"},
    "token of another kind": {"authorization": f"Basic {TOKEN}"},
    "made-up session": {"cookie": f"paceline_session={int(NOW_S) + 3600}.{'A' * 43}"},
    "session of another token": session(token="pl_" + "o" * 40),
    "session that is over": session(session_s=-1),
    "wrong token with a good session": {"authorization": "Bearer pl_x", **session()},
    "token in the address": {"x-token": TOKEN},
}


async def test_every_operation_is_in_this_matrix(api):
    operations = {
        operation["operationId"]: (method.upper(), path)
        for path, methods in api.app.openapi()["paths"].items()
        for method, operation in methods.items()
    }
    assert set(operations) == OPEN | set(GUARDED)
    for name, (method, path) in GUARDED.items():
        documented_method, documented_path = operations[name]
        assert method == documented_method
        assert len(path.split("/")) == len(documented_path.split("/"))


@pytest.mark.parametrize("caller", UNKNOWN)
@pytest.mark.parametrize("operation", GUARDED)
async def test_who_is_not_known_gets_401(api, operation, caller):
    method, path = GUARDED[operation]
    async with api.stranger(headers=UNKNOWN[caller]) as client:
        answer = await client.request(method, path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["code"] == "unauthorised"


@pytest.mark.parametrize("caller", UNKNOWN)
async def test_who_is_not_known_may_ask_whether_they_are(api, caller):
    async with api.stranger(headers=UNKNOWN[caller]) as client:
        answer = await client.get("/api/v1/session")
    assert answer.status_code == 200
    assert answer.json() == {"authenticated": False}


FOREIGN = {
    "no sign of where from": {},
    "another site": {"sec-fetch-site": "cross-site"},
    "another site with our origin": {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
    "another port of this host": {"sec-fetch-site": "same-site"},
    "another origin": {"origin": "http://evil.test"},
    "an origin with our name in it": {"origin": "http://localhost.evil.test"},
    "no origin at all": {"origin": "null"},
}


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("operation", CHANGING)
async def test_a_session_changes_nothing_from_elsewhere(api, operation, origin):
    method, path = GUARDED[operation]
    async with api.stranger(headers=session() | FOREIGN[origin]) as client:
        answer = await client.request(method, path, json=json_batch())
    assert answer.status_code == 403
    assert answer.json()["code"] == "forbidden"


@pytest.mark.parametrize(
    "origin", [{"sec-fetch-site": "same-origin"}, {"origin": "http://localhost"}]
)
async def test_a_session_changes_things_from_our_own_page(api, origin):
    await api.register()
    async with api.stranger(headers=session() | origin) as client:
        assert (await client.post("/api/v1/jobs/llm-70b/end")).status_code == 200


async def test_a_session_may_look_at_things(api):
    async with api.stranger(headers=session()) as client:
        assert (await client.get("/api/v1/jobs")).status_code == 200


async def test_paths_that_do_not_exist_are_guarded_too(api):
    async with api.stranger() as client:
        assert (await client.get("/api/v1/nothing")).status_code == 401
        assert (await client.get("/api/")).status_code == 401


async def test_a_body_of_who_is_not_known_is_never_read(api):
    async def endless():
        yield b"{"
        raise AssertionError("the body was read")

    async with api.stranger() as client:
        answer = await client.put("/api/v1/jobs/a", content=endless())
    assert answer.status_code == 401
