"""Limits of a project's rates do not affect other projects."""

import pytest

from app.api.http.bodies import BURST_S, ProjectRates
from app.errors import ByteLimit, RequestLimit
from tests.api.server import JOB, Clock, binary_batch, running

pytestmark = pytest.mark.anyio


def limits(clock, **changes):
    rates = {"requests_per_s": 10.0, "bytes_per_s": 1000.0, **changes}
    return ProjectRates(monotonic=clock, **rates)


def num_allowed(limited, project="a", size_bytes=0):
    """Number of requests before the first refusal, and the refusal."""
    for number in range(1000):
        try:
            limited.take(project, size_bytes)
        except (RequestLimit, ByteLimit) as refused:
            return number, refused
    raise AssertionError("none was refused")


def test_burst_is_allowed_and_then_the_rate():
    clock = Clock()
    limited = limits(clock)
    number, refused = num_allowed(limited)
    assert number == 10 * BURST_S
    assert isinstance(refused, RequestLimit)
    assert refused.retry_after_s == 1
    clock.now_s += 1
    assert num_allowed(limited)[0] == 10
    clock.now_s += 1000
    assert num_allowed(limited)[0] == 10 * BURST_S


def test_large_body_overdraws_and_later_requests_wait():
    clock = Clock()
    limited = limits(clock)
    number, refused = num_allowed(limited, size_bytes=7000)
    assert number == 1
    assert isinstance(refused, ByteLimit)
    assert refused.retry_after_s == 6
    clock.now_s += refused.retry_after_s
    assert num_allowed(limited, size_bytes=10)[0] > 0


def test_claimed_length_costs_at_most_the_longest_body():
    clock = Clock()
    limited = limits(clock, bytes_per_s=float(8 << 20))
    limited.take("a", 10**15)
    clock.now_s += 1
    limited.take("a", 0)


def test_project_at_its_limit_does_not_affect_another():
    limited = limits(Clock())
    num_allowed(limited, "a")
    assert num_allowed(limited, "b")[0] == 10 * BURST_S


async def test_project_at_its_limit_gets_429_and_another_does_not(database_url):
    async with running(database_url, limit_requests_per_s=2) as api:
        _, text = api.token(project="research")
        for _ in range(4):
            assert (await api.client.get("/api/v1/jobs")).status_code == 200
        answer = await api.client.get("/api/v1/jobs")
        assert (answer.status_code, answer.json()["code"]) == (429, "limit_requests")
        assert answer.headers["retry-after"] == "1"
        async with api.client_with(text) as other:
            assert (await other.get("/api/v1/jobs")).status_code == 200
        api.monotonic.now_s += 1
        assert (await api.client.get("/api/v1/jobs")).status_code == 200


async def test_body_without_content_length_is_counted(database_url):

    async def in_parts():
        yield binary_batch()

    async with running(database_url, limit_bytes_per_s=100) as api:
        push = "/api/v1/jobs/llm-70b/ops"
        assert (await api.client.post(push, content=in_parts())).status_code != 429
        answer = await api.client.post(push, content=in_parts())
    assert (answer.status_code, answer.json()["code"]) == (429, "limit_bytes")


async def test_active_jobs_of_a_project_are_limited(database_url):
    async with running(database_url, limit_jobs=2) as api:
        _, text = api.token(project="research")
        for name in ("a", "b"):
            await api.register(name)
        answer = await api.client.put("/api/v1/jobs/c", json=JOB)
        assert (answer.status_code, answer.json()["code"]) == (429, "limit_jobs")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await api.client.get("/api/v1/jobs/c")).status_code == 404
        await api.register("b", run_key="run-2")  # a restart is not another job
        async with api.client_with(text) as other:
            assert (await other.put("/api/v1/jobs/c", json=JOB)).status_code == 201
        await api.client.post("/api/v1/jobs/a/end")
        assert (await api.client.put("/api/v1/jobs/c", json=JOB)).status_code == 429
        api.clock.now_s += 86_401  # one ended, the other stopped sending
        await api.register("d")
