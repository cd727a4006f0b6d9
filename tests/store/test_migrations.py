import os
import subprocess
import sys
from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from app.errors import StartUpFailed, StoreUnavailable
from app.store.alerting.tables import all_tables
from app.store.database import (
    Store,
    current_revision,
    is_migrated,
    newest_revision,
    without_time_limits,
)
from app.store.migrations import alembic_config, downgrade_within, migrate

pytestmark = pytest.mark.sql_sensitive


@pytest.fixture
def pg_url(new_pg_url):
    """Tables are changed here."""
    return new_pg_url


def test_migrated_tables_equal_the_tables_of_the_code(store):
    with store.read() as conn:
        context = MigrationContext.configure(
            conn, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, all_tables) == []
        assert current_revision(conn) == newest_revision()


def test_sqlite_files_are_for_their_owner_alone(tmp_path):
    path = tmp_path / "paceline.db"
    path.touch(mode=0o644)  # as a copy may be
    migrate(url := f"sqlite:///{path}")
    store = Store(url)
    with store.read():
        found = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    store.close()
    assert found == dict.fromkeys(("paceline.db", "paceline.db-wal", "paceline.db-shm"), 0o600)


def test_revision_without_alembic_equals_that_of_alembic(store):
    assert newest_revision() == ScriptDirectory.from_config(alembic_config()).get_current_head()
    with store.read() as conn:
        assert current_revision(conn) == MigrationContext.configure(conn).get_current_revision()


@pytest.mark.nightly  # it imports all of the API
def test_api_and_consumer_do_not_import_alembic():
    program = "import sys, app.main, app.consumer.loop; sys.exit('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def downgrade(url, to_revision):
    with closing(Store(url)) as store, store.write() as conn:
        without_time_limits(conn)
        downgrade_within(conn, to_revision)


def test_downgrade_drops_all_tables_and_upgrade_recreates_them(url):
    downgrade(url, "base")
    assert not is_migrated(url)
    store = Store(url)
    with store.read() as conn:
        assert set(inspect(conn).get_table_names()) == {"alembic_version"}
    store.close()
    for _ in range(2):  # the second time it changes nothing
        migrate(url)
        assert is_migrated(url)


@pytest.mark.parametrize(
    "empty_url", ["postgresql", pytest.param("sqlite", marks=pytest.mark.nightly)], indirect=True
)
def test_concurrent_migrations_succeed(empty_url):
    assert not is_migrated(empty_url)
    program = f"from app.store.migrations import migrate; migrate({empty_url!r})"
    runs = [
        subprocess.Popen([sys.executable, "-c", program], env=dict(os.environ), stderr=-1)
        for _ in range(2)
    ]
    errors = [run.communicate()[1].decode() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], errors
    assert is_migrated(empty_url)


def test_a_database_of_a_newer_version_is_refused(url, store):
    with store.write() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert not is_migrated(url)
    with pytest.raises(StartUpFailed, match="revision 9999, which this version does not know"):
        migrate(url)


@pytest.mark.parametrize("revision", ["0001", "0023"])
def test_a_database_of_before_the_oldest_release_is_refused(url, store, revision):
    with store.write() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = :it"), {"it": revision})
    assert not is_migrated(url)
    with pytest.raises(StartUpFailed, match=f"{revision}, of before release 0.1.0: run paceline"):
        migrate(url)
    with store.read() as conn:
        assert current_revision(conn) == revision


def test_directory_of_a_new_sqlite_file_is_created(tmp_path):
    migrate(f"sqlite:///{tmp_path / 'a' / 'b' / 'paceline.db'}")
    assert (tmp_path / "a" / "b" / "paceline.db").is_file()


def test_missing_server_is_unavailable(tmp_path):
    with pytest.raises(StoreUnavailable):
        migrate(f"postgresql://nobody@/nothing?host={tmp_path}")


@pytest.mark.parametrize(
    "plain",
    [
        "INSERT INTO service_keys (name, key) VALUES ('pictures', '0123456789')",
        "INSERT INTO endpoints (endpoint_id, name, format, url, matchers, min_severity,"
        " wants_resolved, is_enabled, failures)"
        " VALUES ('a', 'a', 'standard', 'https://a.example', '[]', 'info', TRUE, TRUE, 0)",
    ],
    ids=["key", "receiver"],
)
def test_secrets_in_plain_of_before_the_oldest_release_are_refused(url, store, plain):
    downgrade(url, "0024")
    with store.write() as conn:
        conn.execute(text(plain))
    with pytest.raises(StartUpFailed, match="1 secrets in the database are not encrypted"):
        migrate(url)
    with store.read() as conn:
        assert current_revision(conn) == "0024"
