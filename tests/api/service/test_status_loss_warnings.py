"""A lossy queue or store is refused at start, or shown as warnings where it is allowed."""

import os
import shutil
import subprocess
import sys
from contextlib import closing

import httpx
import pytest
from pydantic import SecretStr

from tests import redis_servers
from tests.api.server import TOKEN, running
from tests.e2e.stack import free_port, wait_until

SENTENCE = "the event queue has 'appendfsync everysec'"
PACELINE = [sys.executable, "-m", "app.cli"]


async def session(api):
    async with api.anonymous_client() as client:
        await client.post("/api/v1/session", json={"token": TOKEN})
        shown = (await client.get("/api/v1/session")).json()
    assert shown.pop("scopes") == ["ingest", "read", "write", "admin"]
    return shown


@pytest.mark.anyio
async def test_session_lists_loss_warnings(database_url):
    async with running(database_url, allow_lossy=True) as api:
        api.queue.weaknesses = (SENTENCE,)
        assert await session(api) == {"authenticated": True, "lossy": [SENTENCE], "price": None}


@pytest.mark.anyio
async def test_last_warnings_stay_while_the_queue_is_away(database_url):
    async with running(database_url, allow_lossy=True) as api:
        api.queue.is_up = False
        assert await session(api) == {"authenticated": True, "lossy": [], "price": None}


@pytest.mark.anyio
async def test_nothing_is_queried_without_allow_lossy(database_url):
    async with running(database_url) as api:
        api.queue.weaknesses = (SENTENCE,)
        assert await session(api) == {"authenticated": True, "lossy": [], "price": None}


@pytest.mark.anyio
async def test_warnings_are_hidden_without_a_session(database_url):
    async with running(database_url, allow_lossy=True) as api, api.anonymous_client() as client:
        api.queue.weaknesses = (SENTENCE,)
        assert (await client.get("/api/v1/session")).json() == {"authenticated": False}


@pytest.fixture
def server(tmp_path):
    with redis_servers.single(tmp_path / "queue", appendfsync="everysec") as group:
        yield group


@pytest.fixture
def environment(tmp_path, empty_database, server):
    database = shutil.copy(empty_database, tmp_path / "paceline.db")
    return {
        **os.environ,
        "PACELINE_REDIS_URL": server.url,
        "PACELINE_DATABASE_URL": f"sqlite:///{database}",
        "PACELINE_TOKEN": SecretStr(TOKEN).get_secret_value(),
        "PACELINE_PORT": str(free_port()),
    }


@pytest.mark.parametrize(
    "command",
    [
        ["consumer", "--check"],
        *(pytest.param([each], marks=pytest.mark.nightly) for each in ("api", "consumer")),
    ],
)
def test_start_is_refused_on_a_lossy_queue(environment, command):
    ended = subprocess.run(
        [*PACELINE, *command], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert [line for line in ended.stderr.splitlines() if "appendfsync always" in line]
    assert "--allow-lossy" in ended.stderr


@pytest.fixture
def start(environment):
    """A function that starts an API and returns a signed-in client."""
    processes: list[subprocess.Popen] = []
    clients: list[httpx.Client] = []

    def begin(*arguments, **changes):
        command = [*PACELINE, "api", *arguments]
        processes.append(subprocess.Popen(command, env={**environment, **changes}))
        base_url = f"http://127.0.0.1:{environment['PACELINE_PORT']}"
        clients.append(httpx.Client(base_url=base_url, trust_env=False))
        wait_until(lambda: answers(clients[-1]), "the API answers")
        return clients[-1]

    yield begin
    for client in clients:
        client.close()
    for process in processes:
        process.kill()
        process.wait()


def answers(client):
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.nightly
def test_api_runs_on_a_lossy_queue_with_allow_lossy_and_warns(start):
    client = start("--allow-lossy")
    client.post("/api/v1/session", json={"token": TOKEN})
    [sentence] = client.get("/api/v1/session").json()["lossy"]
    assert sentence.startswith(SENTENCE)


@pytest.mark.nightly
def test_api_starts_without_the_queue_and_is_not_ready_on_a_lossy_one(server, start):
    server.servers[0].kill()
    client = start()
    assert client.get("/readyz").status_code == 503
    server.servers[0].start()
    wait_until(lambda: "appendfsync always" in client.get("/readyz").text, "it says what is wrong")
    with closing(server.servers[0].client()) as queue:
        queue.config_set("appendfsync", "always")
    wait_until(lambda: client.get("/readyz").status_code == 200, "it is ready")
