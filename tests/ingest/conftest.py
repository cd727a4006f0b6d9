"""A real Valkey server for the tests of the event queue."""

import pytest

from app.ingest.embedded import EmbeddedQueue


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory):
    """URL of a server that all tests share; each test uses job names of its own or wipes it."""
    queue = EmbeddedQueue(tmp_path_factory.mktemp("valkey"))
    yield queue.start()
    queue.stop()
