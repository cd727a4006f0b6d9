"""Store tests run on SQLite, and on a real PostgreSQL: some at every change, all at night."""

import shutil
from contextlib import closing

import pytest

from app.store.alerting.tables import all_tables
from app.store.database import Store
from app.store.migrations import migrate
from tests.postgres import database, postgres_server, reused_database
from tests.secret_keys import KEYS


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config, items):
    """Leave PostgreSQL's half of a test that is not SQL-sensitive to the night.

    A test is marked `sql_sensitive`, and `make test` runs it on PostgreSQL as well, where what it
    checks is said or done otherwise there: an upsert, RETURNING, an operator on JSON, LIKE, LIMIT
    or an order with NULLs or by collation, a lock, a fence or a claim, concurrent transactions, a
    migration, the width of an integer, more parameters than a statement takes, what retention
    deletes. Tests that ask for `pg_url` are about PostgreSQL itself and always run.
    """
    folder = config.rootpath / "tests" / "store"
    for item in items:
        if not item.path.is_relative_to(folder) or not hasattr(item, "callspec"):
            continue
        params = item.callspec.params
        is_postgresql = "postgresql" in (params.get("url"), params.get("empty_url"))
        if is_postgresql and not item.get_closest_marker("sql_sensitive"):
            item.add_marker(pytest.mark.nightly)


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


@pytest.fixture(scope="session")
def emptied_pg(pg_server, migrated_pg):
    tables = [table.name for table in all_tables.sorted_tables]
    with reused_database(pg_server, tables, template_url=migrated_pg) as emptied:
        yield emptied


@pytest.fixture
def pg_url(emptied_pg):
    """A database with all tables and no rows, on PostgreSQL only."""
    return emptied_pg()


@pytest.fixture
def new_pg_url(pg_server, migrated_pg):
    """The same that no other test has used."""
    with database(pg_server, template_url=migrated_pg) as url:
        yield url


@pytest.fixture
def store(url):
    with closing(Store(url, keys=KEYS)) as store:
        yield store
