"""A port of this machine that nothing may connect to, and one receiver that may be reached."""

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


class Sentinel:
    """Listens on all addresses of this machine and counts who comes."""

    def __init__(self, listeners: list[socket.socket]) -> None:
        self._listeners = listeners
        self.port: int = listeners[0].getsockname()[1]

    def num_connections(self) -> int:
        """Connections since the last time; the kernel has counted them before connect returned."""
        number = 0
        while ready := select.select(self._listeners, [], [], 0)[0]:
            for listener in ready:
                listener.accept()[0].close()
                number += 1
        return number


@contextmanager
def sentinel() -> Iterator[Sentinel]:
    """Listens until the block ends."""
    with ExitStack() as stack:
        four = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        listeners = [four]
        if socket.has_ipv6:
            port = four.getsockname()[1]
            six = socket.create_server(("::", port), family=socket.AF_INET6)
            listeners.append(stack.enter_context(six))
        yield Sentinel(listeners)
