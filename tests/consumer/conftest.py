"""Consumer twins, each with a database of its own, and a receiver of messages."""

import itertools
import shutil

import pytest

from app.store.migrations import migrate
from tests.alerts.http_receiver import receiver
from tests.consumer.twin import ConsumerTwin


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    """An SQLite file with all tables and no rows, to be copied."""
    path = tmp_path_factory.mktemp("store") / "migrated.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def hook():
    """A receiver of messages."""
    with receiver() as hook:
        yield hook


@pytest.fixture
def make_twin(migrated_file, tmp_path):
    """A function that makes a twin with its own database."""
    numbers, twins = itertools.count(), []

    def make(**settings):
        path = shutil.copy(migrated_file, tmp_path / f"{next(numbers)}.db")
        twins.append(ConsumerTwin(f"sqlite:///{path}", **settings))
        return twins[-1]

    yield make
    for twin in twins:
        twin.store.close()


@pytest.fixture
def twin(make_twin):
    return make_twin()
