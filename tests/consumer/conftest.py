"""Workplaces for the tests of the consumer, each with a database of its own."""

import itertools
import shutil

import pytest

from app.store.migrate import migrate
from tests.consumer.place import Place


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    """An SQLite file with all tables and no rows, to be copied."""
    path = tmp_path_factory.mktemp("store") / "migrated.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def make_place(migrated_file, tmp_path):
    """Makes another workplace, apart from all others."""
    numbers, places = itertools.count(), []

    def make(**settings):
        path = shutil.copy(migrated_file, tmp_path / f"{next(numbers)}.db")
        places.append(Place(f"sqlite:///{path}", **settings))
        return places[-1]

    yield make
    for place in places:
        place.store.close()


@pytest.fixture
def place(make_place):
    return make_place()
