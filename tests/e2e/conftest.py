"""One PostgreSQL server for the end-to-end tests, and an empty database of each kind."""

import pytest

from tests.postgres import database, postgres_server


@pytest.fixture(scope="session")
def pg_server():
    with postgres_server() as url:
        yield url


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)]
)
def database_url(request, tmp_path_factory):
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('store') / 'paceline.db'}"
        return
    with database(request.getfixturevalue("pg_server")) as url:
        yield url
