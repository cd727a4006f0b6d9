"""The door to the database, SQLite in one file or PostgreSQL, and SQL that all modules share.

`Store` opens connections and transactions. Upserts work in either dialect. A page of a list ends
with a cursor: the key of its last row, so that no row is missed or repeated.

It works without Alembic, which takes a fifth of a second to load and which only the process that
migrates needs (app/store/migrations.py).
"""

import base64
import binascii
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import msgspec
from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    FromClause,
    Insert,
    Select,
    Table,
    and_,
    column,
    create_engine,
    event,
    inspect,
    make_url,
    select,
    table,
    text,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

import app
from app.errors import DiskFull, InvalidRequest, StartUpFailed, StoreUnavailable
from app.store.alerting.tables import alert_groups
from app.store.credentials.sealing import OPTION, SecretKeys
from app.store.disk.usage import FULL_BELOW_BYTES, free_bytes, full_sentence, sqlite_directory
from app.work_budget import checkpoint

__all__ = ["Connection", "Store", "now_s", "parse_url", "with_longer_limit", "without_time_limits"]

# Callers retry after these limits; a longer wait would hold up all that wait behind it.
_PG_STATEMENT_S = 5
_PG_LONG_STATEMENT_S = 60
_PG_LOCK_S = 2
_PG_IDLE_IN_TRANSACTION_S = 10
_SQLITE_LOCK_S = 5  # longer: there, every write waits for every other
# The server ended a transaction that was idle, or took, too long: the driver calls that internal.
_PG_TRANSACTION_ENDED = ("25P03", "25P04")
_PG_DISK_FULL = "53100"
_SQLITE_FULL = 13
# What SQLite says, too, where it cannot make or extend a file beside the database.
_SQLITE_NO_FILE = (10, 14)  # SQLITE_IOERR, SQLITE_CANTOPEN
# A consumer cut off from the server is noticed in 5.6 s, on both sides, instead of in minutes.
_KEEPALIVES = {"keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3}
_TCP_USER_TIMEOUT_MS = 5000
_POOL_WAIT_S = 5
_HOW_TO_WRITE_URL = (
    "want sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %2F, %3A and %40 "
    "for / : and @ in the password"
)


class Store:
    """Connections to one database; every failure to reach it is a `StoreUnavailable`.

    The URL is `sqlite:///path` or `postgresql://...`. `lock_wait_s` is how long a write waits for
    another one: 2 s on PostgreSQL and 5 s on SQLite, where it is not given. `keys` open and seal
    stored secrets; without them these stay locked.
    """

    def __init__(
        self, url: str, *, lock_wait_s: float | None = None, keys: SecretKeys | None = None
    ) -> None:
        parsed = parse_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._directory = sqlite_directory(url)
        make = _sqlite_engine if self.is_sqlite else _postgres_engine
        default_s = _SQLITE_LOCK_S if self.is_sqlite else _PG_LOCK_S
        made = make(parsed, default_s if lock_wait_s is None else lock_wait_s)
        event.listen(made, "before_cursor_execute", _check_work_budget)
        self._engine = made.execution_options(**{OPTION: keys or SecretKeys()})

    def read(self) -> AbstractContextManager[Connection]:
        """A transaction that changes nothing."""
        return self._reading(postgresql_readonly=True)

    def snapshot(self) -> AbstractContextManager[Connection]:
        """A transaction that changes nothing, in which all statements see the same snapshot."""
        return self._reading(isolation_level="REPEATABLE READ")

    @contextmanager
    def _reading(self, **on_postgresql: Any) -> Iterator[Connection]:
        options = {} if self.is_sqlite else on_postgresql
        with self._connect() as conn, conn.execution_options(**options).begin() as transaction:
            yield conn
            transaction.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed at the end of the block, or not at all."""
        with self._connect() as conn, conn.execution_options(immediate=True).begin():
            yield conn

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        with _as_store_errors(self._directory), self._engine.connect() as conn:
            yield conn

    @contextmanager
    def outside_transactions(self) -> Iterator[Connection]:
        """Each statement is a transaction of its own, as VACUUM has to be."""
        with self._connect() as conn:
            if self.is_sqlite:
                yield conn.execution_options(outside_transactions=True)
            else:
                yield conn.execution_options(isolation_level="AUTOCOMMIT")

    def forget_log(self) -> None:
        """Empty SQLite's write-ahead log into the file, as far as no reader needs it."""
        if self.is_sqlite:
            with self._connect() as conn:
                raw = conn.connection.driver_connection
                if raw is not None:
                    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def parse_url(url: str) -> URL:
    """The URL with the driver that we use.

    Raises:
        StartUpFailed: it is invalid, or names an unsupported database; the message shows at most
            its scheme, since the rest may be a password.
    """
    try:
        parsed = _with_driver(make_url(url))
        # Raises for options that the driver cannot take, as the first connection would.
        parsed.get_dialect()().create_connect_args(parsed)
    except (ArgumentError, ValueError):
        # Its words stay out: they may quote a part of a password, as no number of a port.
        raise StartUpFailed(f"PACELINE_DATABASE_URL cannot be read: {_HOW_TO_WRITE_URL}") from None
    return parsed


def _with_driver(parsed: URL) -> URL:
    if parsed.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite") and parsed.database:
        return parsed
    raise StartUpFailed(
        f"PACELINE_DATABASE_URL: no database of kind {parsed.drivername!r}: "
        "want sqlite:///PATH or postgresql://..."
    )


def now_s(conn: Connection) -> float:
    """Unix time by the database's clock, which all processes share.

    On PostgreSQL it is the current time, not the start of the transaction.
    """
    if conn.dialect.name == "sqlite":
        return time.time()
    asked = conn.execute(text("SELECT extract(epoch FROM clock_timestamp())"))
    return float(asked.scalar_one())


def without_time_limits(conn: Connection) -> None:
    """Lift the time limits of this transaction, for reading or writing whole tables."""
    if conn.dialect.name == "postgresql":
        for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
            conn.execute(text(f"SET LOCAL {limit} = 0"))


def with_longer_limit(conn: Connection) -> None:
    """Allow each statement of this transaction a minute, for the large rows of large jobs."""
    if conn.dialect.name == "postgresql":
        conn.execute(text(f"SET LOCAL statement_timeout = '{_PG_LONG_STATEMENT_S}s'"))


def _check_work_budget(conn: Connection, *_statement: Any) -> None:
    # A transaction that writes is finished, even if its caller has gone.
    if not conn.get_execution_options().get("immediate", False):
        checkpoint()


@contextmanager
def _as_store_errors(directory: Path | None) -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        if full := _full_disk(error, directory):
            raise full from error
        raise StoreUnavailable("the database does not answer in time") from error
    except DBAPIError as error:
        ended = getattr(error.orig, "sqlstate", None) in _PG_TRANSACTION_ENDED
        if not (ended or error.connection_invalidated):
            raise
        raise StoreUnavailable("the connection to the database was lost") from error


def _full_disk(error: Exception, directory: Path | None) -> DiskFull | None:
    """The error to raise instead of one that a full disk explains."""
    cause = getattr(error, "orig", None)
    if directory is None:
        is_full = getattr(cause, "sqlstate", None) == _PG_DISK_FULL
        return DiskFull("the disk of the database is full") if is_full else None
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    left_bytes = free_bytes(directory)
    if left_bytes is None:
        return None
    if code == _SQLITE_FULL or (code in _SQLITE_NO_FILE and left_bytes < FULL_BELOW_BYTES):
        return DiskFull(full_sentence(left_bytes))
    return None


def _sqlite_engine(url: URL, lock_wait_s: float) -> Engine:
    engine = create_engine(
        url,
        connect_args={"timeout": lock_wait_s},
        pool_timeout=_POOL_WAIT_S,
        max_overflow=40,
        hide_parameters=True,  # errors reach the log, and parameters may be personal
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions by itself: it does so too late for a snapshot.
        connection.isolation_level = None
        # First, as it takes effect before anything is written; where it holds already, it would
        # write all the same, and wait for another writer.
        [is_shrinking] = connection.execute("PRAGMA auto_vacuum").fetchone()
        if not is_shrinking:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL").close()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
        if conn.get_execution_options().get("outside_transactions", False):
            return
        # A transaction that reads first and then writes would fail at once, without waiting,
        # if another one wrote in between.
        immediate = conn.get_execution_options().get("immediate", False)
        conn.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _postgres_engine(url: URL, lock_wait_s: float) -> Engine:
    settings = {
        "statement_timeout": f"{_PG_STATEMENT_S}s",
        "lock_timeout": f"{lock_wait_s}s",
        "idle_in_transaction_session_timeout": f"{_PG_IDLE_IN_TRANSACTION_S}s",
        "tcp_user_timeout": f"{_TCP_USER_TIMEOUT_MS}ms",
        **{f"tcp_{name}": value for name, value in _KEEPALIVES.items()},
    }
    connect_args = {
        "connect_timeout": 3,
        "application_name": "paceline",
        "tcp_user_timeout": _TCP_USER_TIMEOUT_MS,
        "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        **_KEEPALIVES,
    }
    return create_engine(
        url,
        connect_args=connect_args,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=5,
        max_overflow=15,
        pool_timeout=_POOL_WAIT_S,
    )


# With any of these off, a crash may lose commits whose entries the queue has dropped.
# setting: (values that are safe, the line to change)
_POSTGRES_SETTINGS = {
    "fsync": ({"on"}, "fsync = on"),
    "full_page_writes": ({"on"}, "full_page_writes = on"),
    "synchronous_commit": (
        {"on", "remote_apply", "remote_write", "local"},
        "synchronous_commit = on",
    ),
}
_SQLITE_SETTINGS = {
    "journal_mode": ({"wal"}, "PRAGMA journal_mode = wal"),
    "synchronous": ({"2", "3"}, "PRAGMA synchronous = FULL"),
    "foreign_keys": ({"1"}, "PRAGMA foreign_keys = ON"),
}


def durability_weaknesses(store: Store) -> tuple[str, ...]:
    """Settings with which a commit might not survive a crash: a sentence each; empty if safe.

    Raises:
        StoreUnavailable: no answer.
    """
    required = _SQLITE_SETTINGS if store.is_sqlite else _POSTGRES_SETTINGS
    ask = "PRAGMA" if store.is_sqlite else "SHOW"
    with store.read() as conn:
        values = {
            name: str(conn.exec_driver_sql(f"{ask} {name}").scalar_one()) for name in required
        }
    where = "" if store.is_sqlite else " into postgresql.conf"
    return tuple(
        f"the database would lose commits in a crash: {name} is {values[name]}, put '{line}'{where}"
        for name, (safe, line) in required.items()
        if values[name] not in safe
    )


def check_durable(store: Store) -> None:
    """Check that commits survive a crash.

    Raises:
        StartUpFailed: a setting of the database may lose commits; the message names it.
        StoreUnavailable: no answer.
    """
    if weaknesses := durability_weaknesses(store):
        raise StartUpFailed("; ".join(weaknesses))


VERSION_TABLE = table("alembic_version", column("version_num"))


def is_migrated(url: str) -> bool:
    """Whether the database has exactly this version's tables; raises StoreUnavailable."""
    with closing(Store(url)) as store, store.read() as conn:
        return current_revision(conn) == newest_revision()


def current_revision(conn: Connection) -> str | None:
    """The newest migration applied to the database; None before the first."""
    if not inspect(conn).has_table(VERSION_TABLE.name):
        return None
    return conn.scalar(select(VERSION_TABLE.c.version_num))


def newest_revision() -> str | None:
    """The newest migration that this version knows: its number begins its file's name."""
    names = (path.name for path in (migrations_dir() / "versions").glob("[0-9]*_*.py"))
    return max((name.split("_")[0] for name in names), default=None)


def migrations_dir() -> Path:
    """Folder of the migrations: beside the package in a checkout, inside it when installed."""
    package = Path(app.__file__).parent
    installed = package / "_resources" / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


T = TypeVar("T")


def insert(conn: Connection, table: Table) -> postgresql.Insert:
    """As `insert_in`, in the dialect of the connection."""
    return insert_in(conn.dialect.name, table)


def insert_new(conn: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows whose key is not there yet."""
    if rows:
        conn.execute(insert(conn, table).on_conflict_do_nothing(), rows)


def insert_or_replace(conn: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows, over those that have the same primary key."""
    if rows:
        conn.execute(_replace_statement(conn.dialect.name, table), rows)


@cache
def _replace_statement(dialect: str, table: Table) -> Insert:
    # Cached: building it takes longer than executing it for a few rows.
    statement = insert_in(dialect, table)
    key = list(table.primary_key.columns)
    new = {column.name: statement.excluded[column.name] for column in table.c if column not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=new)


def insert_in(dialect: str, table: Table) -> postgresql.Insert:
    """An insert statement that knows ON CONFLICT, in the dialect of this name."""
    if dialect == "sqlite":
        return cast(postgresql.Insert, sqlite.insert(table))  # the same methods
    return postgresql.insert(table)


MAX_ROWS = 500  # per statement: PostgreSQL takes 65,535 parameters, SQLite half as many


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows in parts that fit into one statement."""
    for at in range(0, len(rows), MAX_ROWS):
        yield rows[at : at + MAX_ROWS]


def of_run(table: FromClause, job_id: str, epoch: int) -> tuple[ColumnElement[bool], ...]:
    """The rows of a table that belong to a run, as conditions."""
    return table.c.job_id == job_id, table.c.epoch == epoch


def equal(table: FromClause, **values: Any) -> list[ColumnElement[bool]]:
    """That columns of a table have these values, as conditions; a value None asks for nothing."""
    return [table.c[name] == value for name, value in values.items() if value is not None]


def one_row(conn: Connection, query: Executable, missing: Exception) -> Any:
    """The one row of a query; raises `missing` if there is none."""
    row = conn.execute(query).one_or_none()
    if row is None:
        raise missing
    return row


def pragma(conn: Connection, name: str) -> int:
    """A number that SQLite says of its file."""
    return int(conn.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def value_of_run(conn: Connection, column: Column[Any], job_id: str, epoch: int) -> Any:
    """The value of a column in the one row that its table has of a run; None without a row."""
    return conn.scalar(select(column).where(*of_run(column.table, job_id, epoch)))


def same_run(one: FromClause, other: FromClause) -> ColumnElement[bool]:
    """Whether rows of two tables are of the same run; of `jobs` the current one."""
    return and_(one.c.job_id == other.c.job_id, one.c.epoch == other.c.epoch)


def rows_of_group(table: Table) -> Select[Any]:
    """The rows of a table that belong to an alert group of the outer query: same job and rule."""
    same = (table.c[name] == alert_groups.c[name] for name in ("job_id", "rule"))
    return select(table.c.job_id).where(*same)


# Values outside the range of columns cannot be from a cursor of ours.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
JobId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]+\Z")]
HexId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{1,64}\Z")]


def new_id() -> str:
    """A new id that cannot be guessed."""
    return secrets.token_hex(12)


def to_cursor(*key: Any) -> str:
    """The cursor of the row with this key: an opaque text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def from_cursor(cursor: str, shape: type[T]) -> T:
    """The key in a cursor of this shape (a tuple type); raises InvalidRequest if it is none."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=shape)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise InvalidRequest("the cursor is not one that this list gave out") from None


def split_page(rows: list[T], limit: int) -> tuple[list[T], bool]:
    """The page, and whether more rows follow; query one row more than the limit."""
    return rows[:limit], len(rows) > limit


class ListOrder(NamedTuple):
    """The order of a list by its `key`, columns that the rows have; a cursor has their values.

    `shape` is a tuple type with those of the columns.
    """

    key: Sequence[ColumnElement[Any]]
    shape: Any
    newest_first: bool = True

    def page(
        self, conn: Connection, query: Select[Any], cursor: str | None, limit: int
    ) -> tuple[Sequence[Any], str | None]:
        """At most `limit` rows of the query after the cursor, and the cursor of the next page.

        Raises:
            InvalidRequest: it is no cursor of this list.
        """
        if cursor is not None:
            key, last = tuple_(*self.key), from_cursor(cursor, self.shape)
            query = query.where(key < last if self.newest_first else key > last)
        order = [column.desc() for column in self.key] if self.newest_first else self.key
        rows = conn.execute(query.order_by(*order).limit(limit + 1)).all()
        if len(rows) <= limit:
            return rows, None
        last_row = rows[limit - 1]._mapping
        return rows[:limit], to_cursor(*(last_row[column] for column in self.key))
