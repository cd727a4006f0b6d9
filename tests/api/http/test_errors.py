"""Invalid requests of all kinds: the right 4xx, as a problem, and never a 5xx."""

import pytest

from app.api.http.bodies import MAX_DRAINED_BYTES
from tests.api.server import JOB

pytestmark = pytest.mark.anyio

ODD_IDS = ["%00", "a%00b", "..%2f..%2fetc", "-a", ".a", "a%20b", "%F0%9F%92%A5", "a" * 129, "%ff"]
LONG = "9" * 5000
CHART = "windows/latest/charts"
ODD_QUERIES = {
    "/jobs?limit=": ("0", "501", "x", LONG),
    "/jobs?cursor=": ("%00", "!!", "AAAA", "A" * 5000, "W10", "WyJcdTAwMDAiXQ"),
    "/jobs/llm-70b/windows?cursor=": ("W10", "Wzk5OTk5OTk5OTk5OTk5OTk5OTk5OTksMV0"),
    "/jobs/llm-70b/windows/": (
        *("x", "1-", "-1-1", "1-99999999999999999999999", "%D9%A1-%D9%A1"),
        *("1-0..", "1-0..latest", "1-8..1-0", "1-0..1-8..1-16", "latest?per_step=perhaps"),
    ),
    f"/jobs/llm-70b/{CHART}/": ("no-such-chart", "workers?theme=neon", "workers?sort=colour"),
    "/jobs/llm-70b/charts/steps?": ("theme=neon", "window=1-0..2-8"),
    "/jobs/llm-70b/steps?": ("epoch=99999999999", "epoch=-1", "first=-1", f"last={LONG[:40]}"),
    "/jobs/llm-70b/headline?window=": ("x",),
    "/alerts?": ("job=%00", "job=a%20b", "cursor=W10"),
}


@pytest.mark.parametrize("job_id", ODD_IDS)
async def test_invalid_job_id_is_refused_by_every_route(api, job_id):
    for method, path in [("PUT", ""), ("GET", ""), ("POST", "/ops"), ("POST", "/end")]:
        answer = await api.client.request(method, f"/api/v1/jobs/{job_id}{path}", json=JOB)
        assert answer.status_code in (404, 405, 422), answer.text
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ODD_QUERIES)
async def test_invalid_query_gets_422(api, path):
    await api.register()
    for odd in ODD_QUERIES[path]:
        answer = await api.client.get(f"/api/v1{path}{odd}")
        assert answer.status_code == 422, (odd, answer.text)
        assert answer.json()["code"] == "invalid"


async def test_problem_has_code_field_and_message(api):
    answer = await api.client.get("/api/v1/jobs?limit=0")
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "/docs/api#error-invalid"
    assert problem["status"] == 422
    assert problem["title"]
    assert problem["instance"] == "/api/v1/jobs"
    assert problem["errors"][0]["field"] == "query.limit"
    assert "limit" in problem["detail"]


async def test_allow_header_has_methods_of_all_routes_of_the_path(api):
    answer = await api.client.post("/api/v1/jobs/llm-70b")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, PATCH, PUT")
    answer = await api.client.post("/docs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


ODD_BODIES = [
    (b"{", 400),
    (b'{"a": "\xff"}', 400),
    (b"[" * 50_000, 400),
    (b"9" * 6000, 400),
    (b"", 422),
    (b'"\\ud800"', 422),
    (b'{"\\ud800": 1}', 422),
    (b'{"run_key": "\\ud800", "parallelism": {"dp_size": 1, "pp_size": 1}}', 422),
    (b'{"run_key": NaN}', 422),
    (b'{"gpus": 1e999}', 422),
]


@pytest.mark.parametrize(("body", "status"), ODD_BODIES)
async def test_invalid_body_gets_a_4xx(api, body, status):
    headers = {"content-type": "application/json"}
    answer = await api.client.put("/api/v1/jobs/a", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


UNREADABLE = [
    (b'{"a": }', "character 6: Expecting value"),
    (b'{"edits": [NaN', "character 14: "),
    (b'{"a": "\xff"}', "the text is not valid UTF-8"),
    (b"[" * 60_000, "nested too deeply"),
    (b"9" * 5000, "an integer has thousands of digits"),
]


@pytest.mark.parametrize(("body", "reason"), UNREADABLE, ids=[part for _, part in UNREADABLE])
@pytest.mark.parametrize(
    ("method", "path"), [("PUT", ""), ("POST", "/windows/latest/what-if")], ids=["job", "what-if"]
)
async def test_unreadable_json_gets_the_reason(api, method, path, body, reason):
    headers = {"content-type": "application/json"}
    url = f"/api/v1/jobs/a{path}"
    answer = await api.client.request(method, url, content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    detail = answer.json()["detail"]
    assert detail.startswith("the body is not valid JSON: ")
    assert reason in detail


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "", "é"])
async def test_json_body_with_another_media_type_is_refused(api, media):
    headers = {"content-type": media.encode()}
    answer = await api.client.put("/api/v1/jobs/a", content=b'{"a": 1}', headers=headers)
    assert answer.status_code == 415


async def test_body_over_the_limit_is_dropped_and_not_read_for_ever(api):
    read = []

    async def growing():
        for number in range(100):
            read.append(number)
            yield b"x" * (1 << 20)

    answer = await api.client.put("/api/v1/jobs/a", content=growing())
    assert answer.status_code == 413
    assert len(read) <= 1 + (MAX_DRAINED_BYTES >> 20)


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:8642", "localhost.evil.test", "", "[::2]"]
)
async def test_unknown_host_gets_421(api, host):
    for path in ("/", "/api/v1/jobs", "/healthz", "/static/index.html"):
        answer = await api.client.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert answer.json()["code"] == "wrong_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8642", "[::1]:8642"])
async def test_loopback_hosts_are_allowed_on_any_port(api, host):
    assert (await api.client.get("/healthz", headers={"host": host})).status_code == 200


async def test_two_host_headers_are_refused(api):
    twice = [("host", "localhost"), ("host", "localhost")]
    answer = await api.client.get("/healthz", headers=twice)
    assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")
