"""A real Paceline process over a filled store."""

import os
import subprocess
import sys
import time

import httpx
import pytest

from app.ingest.embedded import EmbeddedQueue
from app.store import as_of, shards
from app.store.database import Store
from app.store.migrations import migrate
from tests.api.server import TOKEN, json_batch
from tests.e2e.stack import free_port, wait_until
from tests.ops.stocked import stock
from tests.secret_keys import KEY, KEYS

NUM_SHARDS = 4  # by default
COMMAND = "from app.main import run; from app.settings import load_settings; run(load_settings())"


@pytest.fixture(scope="package")
def paceline(tmp_path_factory):
    """A client of a Paceline process over a filled store."""
    directory = tmp_path_factory.mktemp("paceline")
    url, port = f"sqlite:///{directory / 'paceline.db'}", free_port()
    migrate(url)
    store = Store(url, keys=KEYS)
    stock(store, now_s=time.time())
    with store.write() as conn:  # else states are unknown once it takes long: no consumer is here
        for shard in range(NUM_SHARDS):
            shards.acquire(conn, shard, "nobody", now_s=time.time(), lease_s=3600.0)
        as_of.note_taken(
            conn, "nobody", dict.fromkeys(range(NUM_SHARDS), -3600.0), now_s=time.time()
        )
    store.close()
    queue = EmbeddedQueue(directory)
    settings = {"REDIS_URL": queue.start(), "DATABASE_URL": url, "TOKEN": TOKEN, "PORT": str(port)}
    settings["SECRET_KEY"] = KEY
    environment = {f"PACELINE_{name}": value for name, value in settings.items()}
    process = subprocess.Popen([sys.executable, "-c", COMMAND], env={**os.environ, **environment})
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False
    ) as client:
        try:
            wait_until(lambda: is_serving(client), "the API answers")
            client.post("/api/v1/jobs/well/ops", json=json_batch())
            yield client
        finally:
            process.kill()
            process.wait()
            queue.stop()


def is_serving(client):
    """Whether the server answers."""
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False
