"""How much may be on its way at once: request bodies, and requests."""

import asyncio
import re
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import SAFE_METHODS
from app.errors import BadRequest, TooLarge, TooSlow, Unavailable, UnsupportedMedia

EVENTS_PATH = "/api/v1/events"
# Streams count elsewhere, and a probe must have its answer whatever hangs.
_UNCOUNTED = {EVENTS_PATH, "/healthz", "/readyz", "/metrics"}
BODY_WITHIN_S = 30.0
MAX_BYTES_IN_FLIGHT = 256 << 20
MAX_REQUESTS_IN_FLIGHT = 256
_ENCODED = re.compile("/api/v1/jobs/[^/]+/ops")  # takes compressed bodies, and inflates them
_LONGEST_LENGTH = 15  # digits; int() of very many would be slow


class InFlight:
    """Refuses what would be one request too many at the same time; streams count elsewhere."""

    def __init__(self, app: ASGIApp, *, most: int = MAX_REQUESTS_IN_FLIGHT) -> None:
        self._app = app
        self._most = most
        self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in _UNCOUNTED:
            return await self._app(scope, receive, send)
        if self._now >= self._most:
            raise Unavailable("too many requests at the same time: try again")
        self._now += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._now -= 1
        return None


@dataclass(slots=True)
class _Body:
    chunks: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class Bodies:
    """Reads a request's body whole, within a size and a time, before the route is called."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        within_s: float = BODY_WITHIN_S,
        max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._within_s = within_s
        self._max_bytes_in_flight = max_bytes_in_flight
        self._bytes_in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            return await self._app(scope, receive, send)
        self._check_headers(Headers(scope=scope), scope["path"])
        body = _Body()
        try:
            if await self._read(receive, body):
                await self._app(scope, _replay(b"".join(body.chunks), receive), send)
        finally:
            self._bytes_in_flight -= body.size_bytes
        return None

    def _check_headers(self, headers: Headers, path: str) -> None:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity" and not _ENCODED.fullmatch(path):
            raise UnsupportedMedia("send the body without Content-Encoding")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise BadRequest("Content-Length is no number")
        if len(length) > _LONGEST_LENGTH or int(length) > self._max_bytes:
            raise self._too_large()

    async def _read(self, receive: Receive, body: _Body) -> bool:
        """Whether the body came to its end."""
        try:
            async with asyncio.timeout(self._within_s):
                while (message := await receive())["type"] != "http.disconnect":
                    self._take(message.get("body", b""), body)
                    if not message.get("more_body", False):
                        return True
        except TimeoutError as error:
            raise TooSlow(f"the body took longer than {self._within_s:g} s") from error
        return False

    def _take(self, chunk: bytes, body: _Body) -> None:
        body.chunks.append(chunk)
        body.size_bytes += len(chunk)
        self._bytes_in_flight += len(chunk)
        if body.size_bytes > self._max_bytes:
            raise self._too_large()
        if self._bytes_in_flight > self._max_bytes_in_flight:
            raise Unavailable("too many bytes on their way at the same time: try again")

    def _too_large(self) -> TooLarge:
        return TooLarge(f"a body has at most {self._max_bytes} bytes: split it")


def _replay(body: bytes, receive: Receive) -> Receive:
    is_given = False

    async def receive_whole() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_whole
