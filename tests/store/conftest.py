"""Every store test runs on SQLite and on a real PostgreSQL."""

import pytest

from app.store.engine import Store
from app.store.migrate import migrate
from tests.postgres import database, postgres_server


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


@pytest.fixture
def url(empty_url):
    """A database with all tables and no rows."""
    migrate(empty_url)
    return empty_url


@pytest.fixture
def store(url):
    store = Store(url)
    yield store
    store.close()
