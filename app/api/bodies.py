"""How much may be on its way at once, of all and of one project: request bodies, and requests."""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import SAFE_METHODS
from app.api.principal import TRACES_PATH, project_asking
from app.errors import BadRequest, TooLarge, TooSlow, Unavailable, UnsupportedMedia

EVENTS_PATH = "/api/v1/events"
# Streams count elsewhere, and a probe must have its answer whatever hangs.
_UNCOUNTED = {EVENTS_PATH, "/healthz", "/readyz", "/metrics"}
BODY_WITHIN_S = 30.0
# Who trickles a body in holds a place and its bytes for nothing.
SLOWEST_BYTES_PER_S = 1000
SLOW_FOR_S = 3.0
MAX_BYTES_IN_FLIGHT = 256 << 20
MAX_REQUESTS_IN_FLIGHT = 512
# Whatever one project does, another one finds as much again free.
SHARE_OF_PROJECT = 0.5
# These take compressed bodies, and inflate them.
_ENCODED = re.compile(f"/api/v1/jobs/[^/]+/ops|{re.escape(TRACES_PATH)}")
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


class FairShares:
    """Refuses what would be more at the same time than one project's share of all places.

    Behind `Guard`, which knows the project; all that need not be known there share one share.
    """

    def __init__(self, app: ASGIApp, *, most: int = MAX_REQUESTS_IN_FLIGHT) -> None:
        self._app = app
        self._most = max(1, int(most * SHARE_OF_PROJECT))
        self._now: Counter[str | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in _UNCOUNTED:
            return await self._app(scope, receive, send)
        project = project_asking(scope)
        if self._now[project] >= self._most:
            raise Unavailable("this project has too many requests at the same time: try again")
        self._now[project] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            _take_off(self._now, project, 1)
        return None


def _take_off(counted: Counter[str | None], project: str | None, number: int) -> None:
    # A project without a count needs no place in the memory of this process.
    counted[project] -= number
    if not counted[project]:
        del counted[project]


@dataclass(slots=True)
class _Body:
    project: str | None
    chunks: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class Bodies:
    """Reads a request's body whole, within a size and a time, before the route is called.

    One that comes at less than `SLOWEST_BYTES_PER_S`, but for `slow_for_s`, is given up earlier.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        within_s: float = BODY_WITHIN_S,
        slow_for_s: float = SLOW_FOR_S,
        max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._within_s = within_s
        self._slow_for_s = slow_for_s
        self._max_bytes_in_flight = max_bytes_in_flight
        self._bytes_in_flight = 0
        self._bytes_of_project: Counter[str | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            return await self._app(scope, receive, send)
        self._check_headers(Headers(scope=scope), scope["path"])
        body = _Body(project_asking(scope))
        try:
            if await self._read(receive, body):
                await self._app(scope, _replay(b"".join(body.chunks), receive), send)
        finally:
            self._bytes_in_flight -= body.size_bytes
            _take_off(self._bytes_of_project, body.project, body.size_bytes)
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
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(began_s + self._allowed_s(body)) as limit:
                while (message := await receive())["type"] != "http.disconnect":
                    self._take(message.get("body", b""), body)
                    if not message.get("more_body", False):
                        return True
                    limit.reschedule(began_s + self._allowed_s(body))
        except TimeoutError as error:
            raise TooSlow(
                f"the body took longer than {self._within_s:g} s, or came at less than "
                f"{SLOWEST_BYTES_PER_S} bytes a second"
            ) from error
        return False

    def _allowed_s(self, body: _Body) -> float:
        """How long a body of which so much is there may take until more comes."""
        return min(self._within_s, self._slow_for_s + body.size_bytes / SLOWEST_BYTES_PER_S)

    def _take(self, chunk: bytes, body: _Body) -> None:
        body.chunks.append(chunk)
        body.size_bytes += len(chunk)
        self._bytes_in_flight += len(chunk)
        self._bytes_of_project[body.project] += len(chunk)
        if body.size_bytes > self._max_bytes:
            raise self._too_large()
        if self._bytes_in_flight > self._max_bytes_in_flight:
            raise Unavailable("too many bytes on their way at the same time: try again")
        if self._bytes_of_project[body.project] > SHARE_OF_PROJECT * self._max_bytes_in_flight:
            raise Unavailable("this project has too many bytes on their way: try again")

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
