"""Many made jobs on several cores; what is found does not depend on how many."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import structlog

A = TypeVar("A")
R = TypeVar("R")


@contextmanager
def results(call: Callable[[A], R], of: Sequence[A], processes: int) -> Iterator[Iterator[R]]:
    """What the call returns of each, in their order; `call` is a function of a module."""
    if processes < 2:
        yield map(call, of)
        return
    # A forked child would have numba's and numpy's locks, but not the threads that hold them.
    with multiprocessing.get_context("spawn").Pool(processes, _begin) as pool:
        yield pool.imap(call, of)


@contextmanager
def logs_on_stderr() -> Iterator[None]:
    """Standard output is the result alone."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        yield
    finally:
        structlog.configure(**before)


def _begin() -> None:
    from app.cli.children import end_with_parent

    end_with_parent()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
