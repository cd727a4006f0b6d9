"""Shared test configuration: Hypothesis profiles and plain error logs."""

import os

import structlog
from hypothesis import HealthCheck, settings

import tests.example_counts  # noqa: F401 - registers the profile of all examples
from tests.files_in_memory import keep_files_in_memory

keep_files_in_memory()

# The machine is shared: a slow example is no failure, and CI repeats the same examples.
settings.register_profile(
    "dev", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.register_profile("quick", settings.get_profile("dev"), max_examples=10)  # `make quick`
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# structlog's own choice renders every local variable of a traceback, whole arrays among them.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
