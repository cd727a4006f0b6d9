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


@pytest.fixture(autouse=True)
def _logging_as_before():
    """Commands that run in the tests' process set up logging for the whole process."""
    before, handlers = structlog.get_config(), list(logging.root.handlers)
    level = logging.root.level
    yield
    if structlog.get_config() == before:
        return
    structlog.configure(**before)
    logging.root.setLevel(level)
    for handler in list(logging.root.handlers):
        if type(handler) is logging.StreamHandler and handler not in handlers:
            logging.root.removeHandler(handler)
