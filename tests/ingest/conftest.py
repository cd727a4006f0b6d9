"""Real Valkey servers for the tests of the event queue."""

import pytest

from app.ingest.embedded import EmbeddedQueue
from tests import redis_servers

# No server fails in these tests: a server slowed by a busy disk or CPU is not failed over.
PATIENCE_MS = 60_000


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory):
    """URL of a server that all tests share; each test uses job names of its own or wipes it."""
    queue = EmbeddedQueue(tmp_path_factory.mktemp("valkey"))
    yield queue.start()
    queue.stop()


@pytest.fixture(scope="session")
def valkey_cluster(tmp_path_factory):
    """Three nodes that all tests share and wipe."""
    with redis_servers.cluster(
        tmp_path_factory.mktemp("cluster"), patience_ms=PATIENCE_MS
    ) as group:
        yield group


@pytest.fixture(scope="session")
def valkey_sentinel(tmp_path_factory):
    """A primary and a replica that all tests share and wipe."""
    directory = tmp_path_factory.mktemp("sentinel")
    with redis_servers.sentinel(directory, patience_ms=PATIENCE_MS) as group:
        yield group
