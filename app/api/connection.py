"""Connections that cannot be held open or filled by half a request."""

import asyncio
from typing import Any

from starlette.types import Scope
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 16_384
HEADERS_WITHIN_S = 10.0
# From the server's end on; less than what it grants to answers that have not begun.
SENT_WITHIN_S = 2.0
_ABORT = "paceline.abort"


def abort(scope: Scope) -> bool:
    """Cut off a request's caller, with all that waits to be sent; False if there is no way to."""
    cut_off = scope.get("extensions", {}).get(_ABORT)
    if cut_off is None:
        return False
    cut_off["abort"]()
    return True


class BoundedHeaders(HttpToolsProtocol):
    """Closes a connection whose request line and headers are too large, or too long in coming.

    uvicorn's fast parser has no limit of its own for either. It also waits for callers that do
    not read what was sent; here routes can `abort`, and the server's end cuts them off.
    """

    _awaits_headers = True
    _header_bytes = 0
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
    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._awaits_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
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
        self._awaits_headers, self._header_bytes = True, 0
        self._deadline = self.loop.call_later(HEADERS_WITHIN_S, self.transport.close)

    def _stop_waiting(self) -> None:
        self._awaits_headers = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
