"""Migrate a database to this version's tables."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from app.errors import StartUpFailed
from app.store.database import (
    Store,
    current_revision,
    migrations_dir,
    parse_url,
    without_time_limits,
)
from app.store.disk.usage import sqlite_directory

# Any number will do, as long as every Paceline uses the same.
_ADVISORY_LOCK = 7_263_554_618
# A second process waits while the first one migrates.
_LOCK_WAIT_S = 60.0
# The first migration makes its tables; databases and backups of before go through it.
OLDEST_RELEASE = "0.1.0"


def migrate(url: str) -> None:
    """Run the migrations that the database lacks; safe when several processes do it at once.

    Raises:
        StoreUnavailable: the database does not answer.
        StartUpFailed: it belongs to a newer version, or is older than `OLDEST_RELEASE`.
    """
    _make_private_file(url)
    with _alone(url) as conn:
        _refuse_unknown(conn)
        upgrade_within(conn)


@contextmanager
def _alone(url: str) -> Iterator[Connection]:
    """A transaction in which no other process migrates; waits for one that does."""
    with closing(Store(url, lock_wait_s=_LOCK_WAIT_S)) as store, store.write() as conn:
        without_time_limits(conn)
        if conn.dialect.name == "postgresql":  # SQLite's write transaction has waited already
            conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        yield conn


def upgrade_within(conn: Connection) -> None:
    """Run the missing migrations in a transaction that has begun."""
    command.upgrade(alembic_config(conn), "head")


def downgrade_within(conn: Connection, to_revision: str) -> None:
    """Downgrade in a transaction that has begun; data that the older tables cannot hold is lost."""
    command.downgrade(alembic_config(conn), to_revision)


def known_revisions() -> frozenset[str]:
    """The ids of all migrations of this version."""
    scripts = ScriptDirectory.from_config(alembic_config()).walk_revisions()
    return frozenset(script.revision for script in scripts)


def is_too_old(revision: str) -> bool:
    """Whether tables of this revision are older than those of `OLDEST_RELEASE`."""
    return revision < min(known_revisions())


def alembic_config(conn: Connection | None = None) -> Config:
    """Alembic's configuration, to run on this connection; there is no ini file."""
    config = Config()
    # Alembic expands %(names)s in it.
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = conn
    return config


def _make_private_file(url: str) -> None:
    """SQLite's file is for its owner alone, as are those that SQLite makes beside it, with time."""
    database = parse_url(url).database
    if sqlite_directory(url) is None or database is None:  # of another server, or in memory
        return
    path = Path(database)
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # opening the database gives the error
        path.touch(mode=0o600)
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        # A copy may be anybody's to read; of another user, it stays as it is.
        with suppress(FileNotFoundError, PermissionError):
            file.chmod(0o600)


def _refuse_unknown(conn: Connection) -> None:
    revision = current_revision(conn)
    if revision is None or revision in known_revisions():
        return
    if is_too_old(revision):
        raise StartUpFailed(
            f"the database is at revision {revision}, of before release {OLDEST_RELEASE}: run "
            f"paceline migrate of release {OLDEST_RELEASE} first, then that of this one"
        )
    raise StartUpFailed(
        f"the database is at revision {revision}, which this version does not know: "
        "run the newer Paceline, or restore a backup of this one"
    )
