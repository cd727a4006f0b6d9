"""Consumer twins, each with a database of its own, and a receiver of messages."""

import itertools
import shutil
from contextlib import ExitStack, closing

import pytest

from app.store.migrations import migrate
from tests.alerts.http_receiver import receiver
from tests.consumer.notifier import NotifierTwin
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
def new_url(migrated_file, tmp_path):
    """A function that makes a database with all tables and no rows."""
    numbers = itertools.count()
    return lambda: f"sqlite:///{shutil.copy(migrated_file, tmp_path / f'{next(numbers)}.db')}"


@pytest.fixture
def make_twin(new_url):
    """A function that makes a twin with its own database."""
    with ExitStack() as open_ones:

        def make(**settings):
            twin = ConsumerTwin(new_url(), **settings)
            open_ones.enter_context(closing(twin.store))
            return twin

        yield make


@pytest.fixture
def twin(make_twin):
    return make_twin()


@pytest.fixture
def make_notifier(new_url):
    """A function that makes a dispatcher and a sender with their own database."""
    with ExitStack() as open_ones:
        yield lambda **given: open_ones.enter_context(closing(NotifierTwin(new_url(), **given)))


@pytest.fixture
def notifier(make_notifier):
    return make_notifier()
