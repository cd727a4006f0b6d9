"""Shared test configuration: Hypothesis profiles and plain error logs."""

import os

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
