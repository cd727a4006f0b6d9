"""Every store test runs on SQLite and on a real PostgreSQL."""

import shutil

import pytest

from app.store.database import Store
from app.store.migrations import migrate
from tests.postgres import database, postgres_server
from tests.secret_keys import KEYS


@pytest.fixture(scope="session")
def pg_server():
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request, tmp_path):
    """A database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'paceline.db'}"
        return
    with database(request.getfixturevalue("pg_server")) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    """An SQLite file with all tables and no rows, to be copied."""
    path = tmp_path_factory.mktemp("store") / "migrated.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_pg(pg_server):
    """The same on PostgreSQL."""
    with database(pg_server) as url:
        migrate(url)
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A database with all tables and no rows."""
    if request.param == "sqlite":
        path = tmp_path / "paceline.db"
        shutil.copy(request.getfixturevalue("migrated_file"), path)
        yield f"sqlite:///{path}"
        return
    yield request.getfixturevalue("pg_url")


@pytest.fixture
def pg_url(pg_server, migrated_pg):
    """A database with all tables and no rows, on PostgreSQL only."""
    with database(pg_server, template_url=migrated_pg) as url:
        yield url


@pytest.fixture
def store(url):
    store = Store(url, keys=KEYS)
    yield store
    store.close()
