"""An API over a real SQLite store and the in-memory event queue, without a socket."""

import shutil

import pytest

from app.store.migrations import migrate
from tests.api.server import running


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A migrated SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("store") / "empty.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def database_url(empty_database, tmp_path):
    """The address of a migrated SQLite file of its own."""
    return f"sqlite:///{shutil.copy(empty_database, tmp_path / 'paceline.db')}"


@pytest.fixture
async def api(anyio_backend, database_url, tmp_path):
    """A running API and a client that has its token."""
    async with running(database_url, demo_switch=tmp_path / "demo-is-on") as api:
        yield api
