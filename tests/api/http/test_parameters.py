"""Parameters that a route does not have, and ids that do not fit, are refused in words."""

import re

import pytest

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/v1/fleet?limt=5", "query.limt: no such parameter; did you mean limit?"),
        ("/api/v1/alerts?Phase=firing", "did you mean phase? this takes cursor, job, limit,"),
        ("/api/v1/alerts?colour=red", "query.colour: no such parameter; this takes cursor,"),
        ("/api/v1/receivers?limit=5", "query.limit: no such parameter: this takes none"),
    ],
)
async def test_unknown_parameter_is_refused_with_the_nearest_known_one(api, path, words):
    answer = await api.client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert words in answer.json()["detail"]


async def test_every_route_of_the_api_refuses_unknown_parameters(api):
    document = (await api.client.get("/openapi.json")).json()
    asked = [
        (method, re.sub(r"\{(\w+)\}", "1-0", path))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if path.startswith("/api/v1/") and operation["operationId"] != "get_linked_picture"
    ]
    assert len(asked) > 50
    answers = [
        (await api.client.request(method, f"{path}?nosuch=1", json={})).json().get("detail", "")
        for method, path in asked
    ]
    silent = [
        request
        for request, detail in zip(asked, answers, strict=True)
        if "query.nosuch: no such parameter" not in detail
    ]
    assert silent == []


@pytest.mark.parametrize("path", ["/metrics?module=x", "/healthz?x=1"])
async def test_probes_and_scrapers_may_send_parameters_of_their_own(api, path):
    assert (await api.client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/v1/jobs/job-a/windows/3_64", "path.window: '3_64' does not fit. Window id"),
        ("/api/v1/jobs/a%20b", "path.job_id: 'a b' does not fit. The job's id"),
        ("/api/v1/alerts/xyz", "path.fingerprint: 'xyz' does not fit."),
    ],
)
async def test_bad_id_is_refused_with_what_an_id_looks_like(api, path, words):
    answer = await api.client.get(path)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert "pattern" not in answer.json()["detail"]
