import pytest

from tests.api.server import running

pytestmark = pytest.mark.anyio


async def test_who_runs_and_can_work_says_so(api):
    async with api.stranger() as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        ready = await client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {"status": "ready", "checks": {"queue": "ok", "store": "ok"}}


async def test_without_a_queue_the_process_runs_and_says_why_it_is_not_ready(api):
    api.queue.is_up = False
    assert (await api.client.get("/healthz")).status_code == 200
    ready = await api.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.headers["retry-after"]
    assert "queue" in ready.json()["detail"]
    assert ready.json()["checks"]["store"] == "ok"
    api.queue.is_up = True
    assert (await api.client.get("/readyz")).status_code == 200


async def test_without_tables_it_is_not_ready(anyio_backend, tmp_path):
    async with running(f"sqlite:///{tmp_path / 'new.db'}") as api:
        ready = await api.client.get("/readyz")
        assert ready.status_code == 503
        assert "paceline migrate" in ready.json()["checks"]["store"]
        assert (await api.client.get("/api/v1/jobs")).status_code == 503


async def test_a_store_that_does_not_answer_gets_503_and_when_to_try_again(anyio_backend, tmp_path):
    async with running(f"sqlite:///{tmp_path / 'none' / 'new.db'}") as api:
        answer = await api.client.get("/api/v1/jobs")
        assert answer.status_code == 503
        assert answer.json()["code"] == "store_unavailable"
        assert answer.headers["retry-after"]
