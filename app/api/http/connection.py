"""Connections: many accepted in one turn, limits of headers, and `abort` for slow readers."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog
from starlette.types import Scope
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.http.errors import problem
from app.api.http.middleware import common_headers

log = structlog.get_logger()

MAX_HEADER_BYTES = 16_384
HEADERS_WITHIN_S = 10.0
# After shutdown begins; less than the server grants to answers that have not begun.
SENT_WITHIN_S = 2.0
_ABORT = "paceline.abort"
_UNREADABLE = "this is no HTTP request that can be read"
_TOO_LARGE = f"request line and headers have at most {MAX_HEADER_BYTES} bytes"
_PER_HEADER = 4  # a colon, a space and the end of the line


def abort(scope: Scope) -> bool:
    """Abort the connection of a request with unsent data; False if that is impossible."""
    cut_off = scope.get("extensions", {}).get(_ABORT)
    if cut_off is None:
        return False
    cut_off["abort"]()
    return True


class BoundedHeaders(HttpToolsProtocol):
    """Refuses malformed requests and oversized request lines and headers.

    A connection whose headers take too long is closed. uvicorn's fast parser has neither limit, and
    waits for callers that do not read; here routes can `abort`, and shutdown cuts them off.
    """

    _awaits_headers = True
    _received_bytes = 0
    _header_bytes = 0  # that the parser has read: a body may follow in the same segment
    _deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @override
    def on_message_begin(self) -> None:
        if not self._awaits_headers:
            self._await_headers()
        super().on_message_begin()
        extensions = {_ABORT: {"abort": self.transport.abort}}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]

    @override
    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _PER_HEADER)
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._awaits_headers:
            self._received_bytes += len(data)
            if self._received_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                self._refuse(_TOO_LARGE)

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(_TOO_LARGE if self._header_bytes > MAX_HEADER_BYTES else _UNREADABLE)

    def _count(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError(_TOO_LARGE)  # stops the parser, whose caller then refuses

    def _refuse(self, reason: str) -> None:
        """Answer with a problem document and close; during another answer, only close."""
        self._stop_waiting()
        log.warning("request refused", code="malformed", reason=reason)
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_refusal(reason, over_tls=self.scheme == "https"))
        self.transport.close()

    @override
    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(SENT_WITHIN_S, self._stop_sending)

    def _stop_sending(self) -> None:
        if self.cycle is None or self.cycle.response_started:
            self.transport.abort()

    def _await_headers(self) -> None:
        self._stop_waiting()
        self._awaits_headers, self._received_bytes, self._header_bytes = True, 0, 0
        self._deadline = self.loop.call_later(HEADERS_WITHIN_S, self.transport.close)

    def _stop_waiting(self) -> None:
        self._awaits_headers = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _refusal(reason: str, *, over_tls: bool) -> bytes:
    answer = problem({}, 400, "malformed", reason, {"connection": "close"})
    headers = [*answer.raw_headers, *common_headers(of_api=True, over_tls=over_tls)]
    lines = [b"HTTP/1.1 400 Bad Request", *(name + b": " + value for name, value in headers)]
    return b"\r\n".join([*lines, b"", bytes(answer.body)])


# About 5 ms of work.
MAX_ACCEPTED_PER_TURN = 64


class BurstAcceptor:
    """Accepts what waits at listening sockets, beside the loop's own server of them.

    uvloop accepts one connection a turn. While pushes keep turns some milliseconds long, the
    connections of 1,024 workers that begin together take seconds, and so does a page's one behind
    them.
    """

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
        for listener in listeners:
            # The loop allows one watcher per descriptor, and its server is that one.
            own = socket.fromfd(listener.fileno(), listener.family, listener.type)
            own.setblocking(False)
            self._listening.append(own)
            loop.add_reader(own.fileno(), self._accept, own)

    def stop(self) -> None:
        """Accept no more; connections stay open."""
        loop = asyncio.get_running_loop()
        for own in self._listening:
            loop.remove_reader(own.fileno())
            own.close()
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
