"""A database of its own on PostgreSQL, since its size counts here."""

import pytest


@pytest.fixture
def pg_url(new_pg_url):
    return new_pg_url
