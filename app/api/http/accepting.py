"""Accepts many connections in one turn of the event loop.

uvloop accepts one connection a turn. While pushes keep turns some milliseconds long, the
connections of 1,024 workers that begin together take seconds, and so does a page's one behind them.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator

import structlog

log = structlog.get_logger()

# About 5 ms of work.
MAX_ACCEPTED_PER_TURN = 64


class BurstAcceptor:
    """Accepts what waits at listening sockets, beside the loop's own server of them."""

    def __init__(
        self, create_protocol: Callable[[], asyncio.Protocol], *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._create_protocol = create_protocol
        self._tls = tls
        self._listening: list[socket.socket] = []
        self._connecting: set[asyncio.Task[None]] = set()

    def start(self, listeners: Iterable[socket.socket]) -> None:
        """Accept at these too; they stay the caller's."""
        loop = asyncio.get_running_loop()
        for each in listeners:
            # The loop allows one watcher for each descriptor, and its server is that one.
            own = socket.fromfd(each.fileno(), each.family, each.type)
            own.setblocking(False)
            self._listening.append(own)
            loop.add_reader(own.fileno(), self._accept, own)

    def stop(self) -> None:
        """Accept no more; connections stay open."""
        loop = asyncio.get_running_loop()
        for each in self._listening:
            loop.remove_reader(each.fileno())
            each.close()
        self._listening.clear()

    def _accept(self, listening: socket.socket) -> None:
        for accepted in _waiting_at(listening):
            task = asyncio.ensure_future(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._create_protocol, accepted, ssl=self._tls)
        except OSError as error:  # the caller has gone, or does not speak TLS
            accepted.close()
            log.debug("connection not opened", reason=str(error))


def _waiting_at(listening: socket.socket) -> Iterator[socket.socket]:
    for _ in range(MAX_ACCEPTED_PER_TURN):
        try:
            accepted, _ = listening.accept()
        except OSError:  # none is left; where descriptors ran out, the loop's server refuses it
            return
        accepted.setblocking(False)
        yield accepted
