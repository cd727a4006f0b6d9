"""Queue and store have to keep what they take; where that is not asked for, everybody is told."""

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


@pytest.fixture
def url(empty_database, tmp_path):
    return f"sqlite:///{shutil.copy(empty_database, tmp_path / 'twin.db')}"


async def session(api):
    async with api.stranger() as client:
        await client.post("/api/v1/session", json={"token": TOKEN})
        told = (await client.get("/api/v1/session")).json()
    assert told.pop("scopes") == ["ingest", "read", "write", "admin"]
    return told


@pytest.mark.anyio
async def test_a_page_is_told_what_may_be_lost(url):
    async with running(url, allow_lossy=True) as api:
        api.queue.weaknesses = (SENTENCE,)
        assert await session(api) == {"authenticated": True, "lossy": [SENTENCE], "price": None}


@pytest.mark.anyio
async def test_while_the_queue_is_away_what_was_known_stays(url):
    async with running(url, allow_lossy=True) as api:
        api.queue.is_up = False
        assert await session(api) == {"authenticated": True, "lossy": [], "price": None}


@pytest.mark.anyio
async def test_where_losing_is_refused_nothing_is_asked(url):
    async with running(url) as api:
        api.queue.weaknesses = (SENTENCE,)
        assert await session(api) == {"authenticated": True, "lossy": [], "price": None}


@pytest.mark.anyio
async def test_strangers_hear_nothing_of_it(url):
    async with running(url, allow_lossy=True) as api, api.stranger() as client:
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


@pytest.mark.parametrize("command", [["api"], ["consumer"], ["consumer", "--check"]])
def test_no_process_starts_on_a_queue_that_would_lose_batches(environment, command):
    ended = subprocess.run(
        [*PACELINE, *command], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert [line for line in ended.stderr.splitlines() if "appendfsync always" in line]
    assert "--allow-lossy" in ended.stderr


def test_a_consumer_that_is_told_to_runs_on_it(environment):
    command = [*PACELINE, "consumer", "--check", "--allow-lossy"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def start(environment):
    """Starts an API with these arguments; returns a client of it that is signed in."""
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


def test_an_api_that_is_told_to_runs_on_it_and_says_so_to_its_pages(start):
    client = start("--allow-lossy")
    client.post("/api/v1/session", json={"token": TOKEN})
    [sentence] = client.get("/api/v1/session").json()["lossy"]
    assert sentence.startswith(SENTENCE)


def test_an_api_starts_while_the_queue_is_away_and_is_not_ready_on_a_lossy_one(server, start):
    server.servers[0].kill()
    client = start()
    assert client.get("/readyz").status_code == 503
    server.servers[0].start()
    wait_until(lambda: "appendfsync always" in client.get("/readyz").text, "it says what is wrong")
    with closing(server.servers[0].client()) as queue:
        queue.config_set("appendfsync", "always")
    wait_until(lambda: client.get("/readyz").status_code == 200, "it is ready")
