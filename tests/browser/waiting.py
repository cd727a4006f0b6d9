"""Waiting for a page or a server, long enough for a machine that other processes keep busy."""

import time
from collections.abc import Callable, Collection
from typing import Any

from playwright.sync_api import Page

from tests.e2e import stack

# How long a test waits before it fails.
PATIENCE_S = 120.0
_POLL_MS = 20


def until(page: Page, expression: str, arg: Any = None) -> None:
    """Returns once a JavaScript expression is true, or once a function of `arg` returns true.

    Playwright's `wait_for_function` polls inside the page with eval, which the page's content
    security policy forbids; this evaluates it from outside, again and again.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression, arg):
        if time.monotonic() > end_s:
            raise AssertionError(f"not true within {PATIENCE_S:.0f} s: {expression}, {arg}")
        page.wait_for_timeout(_POLL_MS)


def until_handled(page: Page, handled: Collection[object]) -> None:
    """Returns once a handler of the page's requests has put something there."""
    end_s = time.monotonic() + PATIENCE_S
    while not handled:
        if time.monotonic() > end_s:
            raise AssertionError(f"nothing came within {PATIENCE_S:.0f} s")
        page.wait_for_timeout(_POLL_MS)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Returns once the condition holds; asked of a server, not of a page."""
    stack.wait_until(holds, what, PATIENCE_S)
