"""Store tests run on SQLite, and on a real PostgreSQL: some at every change, all at night."""

import shutil
from contextlib import closing

import pytest

from app.store.alerting.tables import all_tables
from app.store.database import Store
from app.store.migrations import migrate
from tests.postgres import database, postgres_server, reused_database
from tests.secret_keys import KEYS

# A test is SQL-sensitive, and `make test` runs it on PostgreSQL as well, where what it checks is
# said or done otherwise there: an upsert, RETURNING, an operator on JSON, LIKE, LIMIT or an order
# with NULLs or by collation, a lock, a fence or a claim, concurrent transactions, a migration, the
# width of an integer, more parameters than a statement takes, what retention deletes. PostgreSQL's
# half of all others is for the night. Tests that ask for `pg_url` are about PostgreSQL itself and
# always run. By file: what the names of its SQL-sensitive tests have in them.
_SQL_SENSITIVE = {
    "alerting/test_alert_rules.py": ("concurrent",),
    "alerting/test_alerts.py": ("more_alerts", "pages", "outlive", "again_replaces"),
    "alerting/test_alerts_events.py": ("filter", "newest_first"),
    "alerting/test_notifications_groups.py": ("claim", "concurrent", "waited_longest", "wake"),
    "alerting/test_outbox.py": ("claim", "concurrent", "outdate", "lock", "replay", "limit", "key"),
    "alerting/test_outbox_order.py": ("turns", "outdate", "refresh", "lists"),
    "alerting/test_silences.py": ("committed", "listed"),
    "credentials/test_resealing.py": ("rotation", "then_sealed"),
    "disk/test_table_sizes.py": ("",),
    "test_backup.py": ("sequences", "without_jobs"),
    "test_database.py": ("",),
    "test_dead_letters.py": ("twice", "pages", "largest"),
    "test_fleet.py": ("prefix", "last_windows"),
    "test_fleet_losses.py": ("sums",),
    "test_jobs.py": ("pages", "decrease", "open_window"),
    "test_migrations.py": ("",),
    "test_migrations_data.py": ("survive", "default_project", "refused", "written"),
    "test_quota.py": ("oldest",),
    "test_recordings.py": ("concurrent",),
    "test_retention.py": ("",),
    "test_runs_counts.py": ("read_back", "sum"),
    "test_runs_registering.py": ("concurrent", "limited"),
    "test_service_state_keys.py": ("once",),
    "test_shards.py": ("owner", "frozen", "commit"),
    "test_thinning.py": ("hour_become_one",),
    "test_windows.py": ("revision", "pages", "latest_is"),
    "test_windows_steps.py": ("replaced", "limited"),
}


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config, items):
    """Leave PostgreSQL's half of a test that is not SQL-sensitive to the night."""
    folder = config.rootpath / "tests" / "store"
    for item in items:
        if not item.path.is_relative_to(folder) or not hasattr(item, "callspec"):
            continue
        params = item.callspec.params
        if "postgresql" not in (params.get("url"), params.get("empty_url")):
            continue
        path = item.path.relative_to(folder).as_posix()
        if not any(part in item.originalname for part in _SQL_SENSITIVE.get(path, ())):
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
