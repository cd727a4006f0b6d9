"""Each refusal is one log line with its request id and no secret."""

import asyncio

import pytest
import structlog

from app.api.http.middleware import ErrorMiddleware
from app.api.http.request_log import (
    MAX_LINES_PER_S,
    ApiMetrics,
    LogRateLimit,
    RefusedJobs,
    RequestLog,
    route_label,
)
from app.api.routes.windows.traces import Download
from tests.api.server import TOKEN, json_batch

pytestmark = pytest.mark.anyio

NOUNS = {"jobs", "ops", "windows"}


@pytest.fixture
def lines():
    """Log lines."""
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        yield lines


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/api/v1/jobs", "jobs"),
        ("/api/v1/jobs/llm-70b", "jobs"),
        ("/api/v1/jobs/llm-70b/ops", "ops"),
        ("/api/v1/jobs/ops/windows/1-0/charts/workers", "windows"),
        ("/api/v1/jobs/windows", "jobs"),
        ("/api/v1/jobs/llm-70b/secret", "other"),
        ("/api/v1/secret/ops", "other"),
        ("/api/", "other"),
        ("/healthz", "healthz"),
        ("/static/js/lib/api.js", "static"),
        ("/jobs/llm-70b", "page"),
        ("", "page"),
    ],
)
async def test_request_is_counted_by_its_route_label(path, route):
    assert route_label(path, NOUNS) == route


async def test_refusal_is_logged_with_its_request_id(api, lines):
    answer = await api.client.get("/api/v1/jobs/none?token=x")
    [line] = lines
    assert line.pop("ms") >= 0
    assert line == {
        "event": "request refused",
        "log_level": "info",
        "request_id": answer.headers["x-request-id"],
        "method": "GET",
        "route": "jobs",
        "path": "/api/v1/jobs/none",
        "status": 422,
        "code": "invalid",
        "bytes": None,
    }


async def test_internal_error_is_logged_as_warning(api, lines):
    await api.register()
    api.queue.is_up = False
    answer = await api.push(json_batch())
    [line] = lines
    assert (line["log_level"], line["status"], line["route"]) == ("warning", 503, "ops")
    assert line["code"] == answer.json()["code"]
    assert line["bytes"] == answer.request.headers["content-length"]


async def test_request_id_of_the_caller_is_ignored(api):
    answer = await api.client.get("/healthz", headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] != "mine"


async def test_token_is_never_logged(api, lines):
    async with api.anonymous_client(headers={"authorization": f"Bearer {TOKEN}x"}) as client:
        assert (await client.get("/api/v1/jobs", params={"t": TOKEN})).status_code == 401
    [line] = lines
    assert TOKEN not in str(line)


async def nothing():
    return {"type": "http.disconnect"}


async def ignore(_message):
    pass


async def test_disconnected_caller_is_counted_and_not_logged(lines):
    async def disconnected(scope, receive, send):
        pass

    measured = ApiMetrics()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await RequestLog(disconnected, measured=measured, nouns=NOUNS, refused=RefusedJobs())(
        scope, nothing, ignore
    )
    labels = {"route": "page", "status": "0"}
    assert measured.registry.get_sample_value("paceline_requests_total", labels) == 1
    assert lines == []


async def test_log_lines_per_second_are_limited_and_omissions_counted():
    now_s = [0.0]
    limited = LogRateLimit(lambda: now_s[0])
    first = [limited.take() for _ in range(MAX_LINES_PER_S + 5)]
    assert first == [0] * MAX_LINES_PER_S + [None] * 5
    now_s[0] = 1.0
    assert [limited.take(), limited.take()] == [5, 0]


@pytest.fixture(params=["/api/v1/pictures/", "/share/"])
def link_scope(request):
    """A request with a link, which is as good as a token."""
    return {"type": "http", "method": "GET", "path": f"{request.param}the-link", "headers": []}


async def test_link_is_in_no_line_about_an_error(link_scope, lines):
    async def broken(scope, receive, send):
        raise RuntimeError("broken")

    logged = RequestLog(
        ErrorMiddleware(broken), measured=ApiMetrics(), nouns=NOUNS, refused=RefusedJobs()
    )
    await logged(link_scope, nothing, ignore)
    assert [line["event"] for line in lines] == ["request failed", "request refused"]
    assert {line["path"] for line in lines} == {link_scope["path"].replace("the-link", "...")}


async def test_link_is_in_no_line_about_a_slow_download(link_scope, lines):
    async def never(_message=None):
        await asyncio.Event().wait()

    file = Download(iter([b"a"]), name="a", media_type="image/png", whole_within_s=0.01)
    await file(link_scope, never, never)
    [line] = lines
    assert line["path"] == link_scope["path"].replace("the-link", "...")
