"""A connection to the first of several addresses that takes one."""

import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

_A = TypeVar("_A")


def first_that_answers(
    addresses: Sequence[_A],
    left_s: Callable[[], float],
    connect: Callable[[_A, float], socket.socket],
) -> socket.socket:
    """What `connect` gives for one of them, each within its share of the seconds left.

    Raises:
        OSError: none of them answers, or no time is left.
    """
    failure: OSError = OSError("no address")
    for number, address in enumerate(addresses):
        # A dead first address leaves time for the others.
        share_s = left_s() / (len(addresses) - number)
        try:
            return connect(address, share_s)
        except OSError as error:
            failure = error
    raise failure
