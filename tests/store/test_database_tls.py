"""PostgreSQL over TLS: a certificate that nobody vouches for is refused."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import text

from app.errors import StoreUnavailable
from app.store.database import Store
from tests.harness.backends import PostgresServer, find_programs
from tests.harness.certificates import make_certificate


@pytest.fixture(scope="module")
def certificate():
    # Where the server may go, which does not run as root and reads no key that others may read.
    folder = Path(tempfile.mkdtemp(prefix="pl-tls-"))
    folder.chmod(0o755)
    made = make_certificate(folder / "known")
    if os.geteuid() == 0:
        shutil.chown(made.key, "postgres")
    yield made
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(certificate):
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL: install Debian's postgresql package")
    settings = {"ssl": "on", "ssl_cert_file": certificate.cert, "ssl_key_file": certificate.key}
    found = PostgresServer(programs, settings={name: str(each) for name, each in settings.items()})
    found.start_and_wait()
    yield found
    found.remove()


def url(server, authority):
    at = server.url().replace("127.0.0.1", "localhost")
    return f"{at}?sslmode=verify-full&sslrootcert={authority}"


def test_statements_pass_over_tls_to_a_server_that_is_vouched_for(server, certificate):
    store = Store(url(server, certificate.authority))
    with store.read() as conn:
        query = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert conn.execute(query).scalar_one() is True
    store.close()


def test_server_that_nobody_vouches_for_is_refused(server, tmp_path):
    store = Store(url(server, make_certificate(tmp_path / "other").authority))
    with pytest.raises(StoreUnavailable), store.read() as conn:
        conn.execute(text("SELECT 1"))
    store.close()
