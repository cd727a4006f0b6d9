"""Waiting for other processes: by polling, since nothing tells us, and never without an end."""

import socket
import time
from collections.abc import Callable

POLL_S = 0.02


class NotInTime(AssertionError):
    """Something that was promised within a time has not happened."""


def wait_until(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> float:
    """Seconds until the condition held.

    Raises:
        NotInTime: it does not hold after `within_s`.
    """
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > within_s:
            raise NotInTime(f"not within {within_s:.0f} s: {what}")
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def free_port() -> int:
    """A port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
