"""A refusal is one line in the log, with what is needed to find it, and never with a secret."""

import pytest
import structlog

from app.api.measured import Measured
from app.api.requests import LINES_A_SECOND, Lines, Requests, route_of
from tests.api.server import TOKEN, json_batch

pytestmark = pytest.mark.anyio

NOUNS = {"jobs", "ops", "windows"}


@pytest.fixture
def lines():
    """What is logged, line by line."""
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
        ("/static/js/api.js", "static"),
        ("/jobs/llm-70b", "page"),
        ("", "page"),
    ],
)
async def test_a_request_is_counted_by_our_words_for_it(path, route):
    assert route_of(path, NOUNS) == route


async def test_a_refusal_is_told_with_the_id_that_its_caller_got(api, lines):
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
        "status": 404,
        "code": "job_not_found",
        "bytes": None,
    }


async def test_a_failure_of_ours_is_told_louder(api, lines):
    await api.register()
    api.queue.is_up = False
    answer = await api.push(json_batch())
    [line] = lines
    assert (line["log_level"], line["status"], line["route"]) == ("warning", 503, "ops")
    assert line["code"] == answer.json()["code"]
    assert line["bytes"] == answer.request.headers["content-length"]


async def test_what_went_well_is_not_told(api, lines):
    await api.register()
    await api.push(json_batch())
    await api.client.get("/api/v1/jobs/llm-70b")
    assert lines == []


async def test_no_id_is_taken_from_outside(api):
    answer = await api.client.get("/healthz", headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] != "mine"


async def test_no_token_of_a_header_is_told(api, lines):
    async with api.stranger(headers={"authorization": f"Bearer {TOKEN}x"}) as client:
        assert (await client.get("/api/v1/jobs", params={"t": TOKEN})).status_code == 401
    [line] = lines
    assert TOKEN not in str(line)


async def nothing():
    return {"type": "http.disconnect"}


async def ignore(_message):
    pass


async def test_a_caller_that_goes_away_before_the_answer_is_counted_and_not_told(lines):
    async def gone(scope, receive, send):
        pass

    measured = Measured()
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await Requests(gone, measured=measured, nouns=NOUNS)(scope, nothing, ignore)
    labels = {"route": "page", "status": "0"}
    assert measured.registry.get_sample_value("paceline_requests_total", labels) == 1
    assert lines == []


async def test_of_a_flood_so_many_lines_a_second_are_told_and_how_many_are_not():
    now_s = [0.0]
    told = Lines(lambda: now_s[0])
    first = [told.take() for _ in range(LINES_A_SECOND + 5)]
    assert first == [0] * LINES_A_SECOND + [None] * 5
    now_s[0] = 1.0
    assert [told.take(), told.take()] == [5, 0]
