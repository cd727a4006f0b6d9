"""The door to the database: SQLite in one file, or PostgreSQL."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import StartUpFailed, StoreUnavailable

__all__ = ["Connection", "Store", "now_s", "parse_url", "with_longer_limit", "without_time_limits"]

# Whoever is cut short here tries again; whoever waits longer holds up all that wait behind it.
_PG_STATEMENT_S = 5
_PG_LONG_STATEMENT_S = 60
_PG_LOCK_S = 2
_PG_IDLE_IN_TRANSACTION_S = 10
_SQLITE_LOCK_S = 5  # longer: there, every write waits for every other
# A consumer cut off from the server is noticed in 5.6 s, on both sides, instead of in minutes.
_KEEPALIVES = {"keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3}
_TCP_USER_TIMEOUT_MS = 5000
_POOL_WAIT_S = 5


class Store:
    """Connections to one database; every failure to reach it is a `StoreUnavailable`.

    The URL is `sqlite:///path` or `postgresql://...`. `lock_wait_s` is how long a write waits for
    another one: 2 s on PostgreSQL and 5 s on SQLite, where it is not given.
    """

    def __init__(self, url: str, *, lock_wait_s: float | None = None) -> None:
        parsed = parse_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        make = _sqlite_engine if self.is_sqlite else _postgres_engine
        usual_s = _SQLITE_LOCK_S if self.is_sqlite else _PG_LOCK_S
        self._engine = make(parsed, usual_s if lock_wait_s is None else lock_wait_s)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database, and changes nothing."""
        with _translated(), self._engine.connect() as conn:
            options = {} if self.is_sqlite else {"postgresql_readonly": True}
            with conn.execution_options(**options).begin() as transaction:
                yield conn
                transaction.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed at the end of the block, or not at all."""
        with _translated(), self._engine.connect() as conn, _writing(conn).begin():
            yield conn

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A reading transaction in which all statements see the same moment."""
        with _translated(), self._engine.connect() as conn:
            if not self.is_sqlite:
                conn = conn.execution_options(isolation_level="REPEATABLE READ")
            with conn.begin() as transaction:
                yield conn
                transaction.rollback()

    def check(self) -> None:
        """Raises StoreUnavailable when the database does not answer."""
        with self.read() as conn:
            conn.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def parse_url(url: str) -> URL:
    """The URL with the driver that we use.

    Raises:
        StartUpFailed: it names no database that Paceline can keep its tables in.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StartUpFailed("the database URL cannot be read: want sqlite:///PATH") from None
    if parsed.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite") and parsed.database:
        return parsed
    raise StartUpFailed(
        f"no database of kind {parsed.drivername!r}: want sqlite:///PATH or postgresql://..."
    )


def now_s(conn: Connection) -> float:
    """Unix time by the clock of the database, which is the same for all that work on it.

    On PostgreSQL it is the moment of asking, not the one at which the transaction began.
    """
    if conn.dialect.name == "sqlite":
        return time.time()
    asked = conn.execute(text("SELECT extract(epoch FROM clock_timestamp())"))
    return float(asked.scalar_one())


def without_time_limits(conn: Connection) -> None:
    """Let this transaction take as long as it needs, for what reads or writes whole tables."""
    if conn.dialect.name == "postgresql":
        for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
            conn.execute(text(f"SET LOCAL {limit} = 0"))


def with_longer_limit(conn: Connection) -> None:
    """Let each statement of this transaction take a minute, for a large job's large rows."""
    if conn.dialect.name == "postgresql":
        conn.execute(text(f"SET LOCAL statement_timeout = '{_PG_LONG_STATEMENT_S}s'"))


def _writing(conn: Connection) -> Connection:
    return conn.execution_options(immediate=True)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise StoreUnavailable("the database does not answer in time") from error
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise StoreUnavailable("the connection to the database was lost") from error


def _sqlite_engine(url: URL, lock_wait_s: float) -> Engine:
    engine = create_engine(
        url, connect_args={"timeout": lock_wait_s}, pool_timeout=_POOL_WAIT_S, max_overflow=40
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions by itself: it does so too late for a snapshot.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
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
        pool_pre_ping=True,
        pool_size=5,
        max_overflow=15,
        pool_timeout=_POOL_WAIT_S,
    )
