"""Every answer is counted; one that refuses or fails is a line in the log, too."""

import time
from collections.abc import Callable, Iterable

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.alerts.picture_link import PATH
from app.api.measured import Measured
from app.api.principal import TRACES_PATH

log = structlog.get_logger()

# A flood of refusals must not fill a disk: so many lines a second, and the number of those left
# out on the next one.
LINES_A_SECOND = 20
_LONGEST_PATH = 200
_LONGEST_LENGTH = 15
_PROBES = {"healthz", "readyz", "metrics"}


class Requests:
    """Counts answers by route and status; `nouns` are the routes that are counted by name."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        measured: Measured,
        nouns: Iterable[str],
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._measured = measured
        self._nouns = frozenset(nouns)
        self._monotonic = monotonic
        self._lines = Lines(monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begun_s, status = self._monotonic(), 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            route = route_of(scope["path"], self._nouns)
            self._measured.request(route, status)
            if status >= 400:
                took_ms = 1e3 * (self._monotonic() - begun_s)
                self._tell(scope, route, status, took_ms)
        return None

    def _tell(self, scope: Scope, route: str, status: int, took_ms: float) -> None:
        left_out = self._lines.take()
        if left_out is None:
            return
        write = log.warning if status >= 500 else log.info
        write(
            "request refused",
            method=scope["method"],
            route=route,
            # Without its query, in which a caller may have put anything.
            path=_shown(scope["path"]),
            status=status,
            code=scope.get("problem"),
            ms=round(took_ms, 1),
            bytes=_claimed_bytes(scope),
            **({"lines_left_out": left_out} if left_out else {}),
        )


def _shown(path: str) -> str:
    """As much of a path as may be read by whoever reads the log: a link is as good as a token."""
    return f"{PATH}..." if path.startswith(PATH) else path[:_LONGEST_PATH]


class Lines:
    """Lets so many lines a second through."""

    def __init__(self, monotonic: Callable[[], float], *, a_second: int = LINES_A_SECOND) -> None:
        self._monotonic = monotonic
        self._a_second = a_second
        self._second_began = float("-inf")
        self._written = 0
        self._left_out = 0

    def take(self) -> int | None:
        """Number of lines that were left out before this one; None to leave this one out, too."""
        now_s = self._monotonic()
        if now_s - self._second_began >= 1.0:
            self._second_began, self._written = now_s, 0
        if self._written >= self._a_second:
            self._left_out += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def _claimed_bytes(scope: Scope) -> str | None:
    """Content-Length as the caller sent it; None without one."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return bytes(value[:_LONGEST_LENGTH]).decode("latin-1")
    return None


def nouns_of(paths: Iterable[str]) -> set[str]:
    """What routes with these paths are counted by: their own words, and nothing of a caller's."""
    return {_noun(path) for path in paths}


def route_of(path: str, nouns: Iterable[str]) -> str:
    """What a request is counted by: ops, windows, ..., a probe's name, static, page or other.

    Spans of OTLP are `traces`.
    """
    if path == TRACES_PATH:
        return "traces"
    if path.startswith("/api/"):
        noun = _noun(path)
        return noun if noun in nouns else "other"
    first = path[1:].partition("/")[0]
    return first if first in _PROBES or first == "static" else "page"


def _noun(path: str) -> str:
    """`ops` of /api/v1/jobs/llm-70b/ops, `jobs` of /api/v1/jobs/llm-70b, `fleet` of all its own."""
    parts = path.split("/", 6)
    place = 5 if len(parts) > 5 and parts[3] == "jobs" else 3
    return parts[place] if len(parts) > place else ""
