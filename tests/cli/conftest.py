"""A migrated store, and a trace, for commands that work on one."""

import shutil

import pytest
from typer.testing import CliRunner

from app.cli import app
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


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    """Three steps of 2 x 2 workers; dp rank 1, stage 0 is slow."""
    path = tmp_path_factory.mktemp("trace") / "trace-made.parquet"
    sizes = ("--dp", "2", "--pp", "2", "--microbatches", "4", "--steps", "3")
    fault = ("--fault", "slow-worker:dp=1,stage=0,factor=2.5")
    result = CliRunner().invoke(app, ["simulate", *sizes, *fault, "--out", str(path)])
    assert result.exit_code == 0, result.stderr
    return path
