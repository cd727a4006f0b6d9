"""Shared test configuration: Hypothesis profiles, plain error logs, logging as it was before."""

import logging
import os
from unittest import mock

import pytest
import structlog
from hypothesis import settings

from tests.example_counts import register_profiles
from tests.files_in_memory import keep_files_in_memory

keep_files_in_memory()
register_profiles()
# `--hypothesis-profile` wins.
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# structlog's own choice renders every local variable of a traceback, whole arrays among them.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


def _configure_uncached(configure=structlog.configure, **options):
    configure(**options | {"cache_logger_on_first_use": False})


# A cached logger would keep the configuration of the first test that runs a command.
mock.patch.object(structlog, "configure", _configure_uncached).start()


_PLAIN, _HANDLERS, _LEVEL = structlog.get_config(), list(logging.root.handlers), logging.root.level


@pytest.fixture(autouse=True)
def _plain_logging():
    """Commands in the tests' process set up logging for all of it, to a stream that they close."""
    _undo_set_up_logging()
    yield
    _undo_set_up_logging()


def _undo_set_up_logging():
    if structlog.get_config() != _PLAIN:
        structlog.configure(**_PLAIN)
        logging.root.setLevel(_LEVEL)
    for handler in list(logging.root.handlers):
        if type(handler) is logging.StreamHandler and handler not in _HANDLERS:
            logging.root.removeHandler(handler)
