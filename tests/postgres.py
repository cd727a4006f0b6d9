"""A real PostgreSQL for tests: one server a session, and databases on it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any, NoReturn

import psycopg
import pytest

from tests.files_in_memory import QUICK
from tests.harness.backends import find_programs

URL_VARIABLE = "PACELINE_TEST_PG_URL"
_USER = "paceline"
_START_WITHIN_S = 60.0


@contextmanager
def postgres_server() -> Iterator[str]:
    """URL of a server for new databases; skips without one, and fails in CI.

    Set PACELINE_TEST_PG_URL to postgresql://USER@HOST:PORT/DATABASE to use one that runs already.
    """
    if given := os.environ.get(URL_VARIABLE):
        yield given
        return
    programs = find_programs()
    if programs is None:
        _give_up(f"no PostgreSQL: install Debian's postgresql package, or set {URL_VARIABLE}")
    # Short, since a socket's path has 107 bytes, and where the user postgres may go.
    near = Path(tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="pl-pg-", dir=near if near == QUICK else "/tmp"))
    try:
        with _running(programs, directory):
            yield f"postgresql://{_USER}@/postgres?host={directory}"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def database(server_url: str, *, template_url: str | None = None) -> Iterator[str]:
    """URL of a new database on the server: empty, or a copy of an unused one."""
    template = _database_of(template_url) if template_url else "template0"
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            yield _with_database(server_url, name)
        finally:
            conn.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def reused_database(
    server_url: str, tables: Sequence[str], *, template_url: str
) -> Iterator[Callable[[], str]]:
    """A copy of a database for many tests: each call sets its rows back and returns its URL.

    This takes milliseconds, a new database hundreds of them. `tables` are all of it with those
    first that others refer to. Tests that change a table itself need a database of their own.
    """
    with (
        database(server_url, template_url=template_url) as url,
        psycopg.connect(url, autocommit=True) as conn,
    ):
        rows = {name: conn.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables}

        def emptied() -> str:
            conn.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            with conn.transaction():
                for name in reversed(tables):
                    conn.execute(f'DELETE FROM "{name}"')
                for name, kept in rows.items():
                    for row in kept:
                        places = ", ".join(["%s"] * len(row))
                        conn.execute(f'INSERT INTO "{name}" VALUES ({places})', row)
                used = "SELECT sequencename FROM pg_sequences WHERE last_value IS NOT NULL"
                for (name,) in conn.execute(used).fetchall():
                    conn.execute(f'ALTER SEQUENCE "{name}" RESTART')
            return url

        yield emptied


def _database_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def _with_database(url: str, name: str) -> str:
    head, question, options = url.partition("?")
    base, _, _ = head.rpartition("/")
    return f"{base}/{name}{question}{options}"


def _give_up(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def _running(programs: Path, directory: Path) -> Iterator[None]:
    # PostgreSQL refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(directory, user)
    data = directory / "data"
    options: dict[str, Any] = {
        "user": user,
        "cwd": directory,
        "env": {"PATH": os.environ["PATH"], "LANG": "C"},
    }
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-locale"],
        check=True,
        capture_output=True,
        **options,
    )
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", directory, "-c", "listen_addresses="],
            stdout=log,
            stderr=log,
            **options,
        )
    try:
        _wait_until_ready(server, directory)
        yield
    finally:
        server.send_signal(signal.SIGINT)  # ends open sessions and stops cleanly
        server.wait(_START_WITHIN_S)


def _wait_until_ready(server: subprocess.Popen[bytes], directory: Path) -> None:
    deadline_s = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            psycopg.connect(f"postgresql://{_USER}@/postgres?host={directory}").close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError((directory / "log").read_text()) from None
            select([], [], [], 0.05)
        else:
            return
