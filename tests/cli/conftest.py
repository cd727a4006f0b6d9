"""A migrated store for commands that work on one."""

import shutil

import pytest

from app.store.database import Store
from app.store.migrations import migrate


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """The file of a migrated store without rows; to be copied."""
    path = tmp_path_factory.mktemp("empty") / "paceline.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def store_url(empty_store, tmp_path):
    """URL of a store of its own in the test's directory."""
    shutil.copy(empty_store, tmp_path / "paceline.db")
    return f"sqlite:///{tmp_path / 'paceline.db'}"


@pytest.fixture
def store(store_url):
    """The store itself, open."""
    store = Store(store_url)
    yield store
    store.close()
