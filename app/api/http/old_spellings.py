"""Old spellings of paths and parameters: answered for one release, and marked as deprecated.

An answer to an old spelling says since when it is one (`Deprecation`, RFC 9745), until when it is
answered (`Sunset`, RFC 8594), and what to ask for instead (`Link`). Nothing else knows them: every
request goes on under its new spelling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

OLD_SINCE = datetime(2026, 11, 24, tzinfo=UTC)
ANSWERED_UNTIL = datetime(2027, 5, 24, tzinfo=UTC)

# A path and all below it, by the old spelling.
PATHS: Mapping[str, str] = {
    "/api/v1/endpoints": "/api/v1/receivers",
    "/api/v1/alerts/active": "/api/v1/alerts",
}
# Parameters by the path, in its new spelling.
PARAMETERS: Mapping[str, Mapping[str, str]] = {"/api/v1/deliveries": {"endpoint": "receiver"}}


@dataclass(frozen=True, slots=True)
class MovedAnswer:
    """A GET of a path that answered something else: told by parameters that only that had."""

    path: str
    parameters: frozenset[str]
    new_path: str


MOVED = MovedAnswer(
    "/api/v1/alerts", frozenset({"kind", "open"}), "/api/v1/alerts/transitions"
)  # transitions, before it listed alerts


class OldSpellings:
    """Passes requests on under their new spelling, and marks the answers to old ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        new = _new_spelling(scope) if scope["type"] == "http" else None
        if new is None:
            return await self._app(scope, receive, send)
        headers = _headers(new["path"])

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        return await self._app(new, receive, send_marked)


def _new_spelling(scope: Scope) -> Scope | None:
    """The request in its new spelling; None if it has no old one."""
    path: str = scope["path"]
    new_path = _new_path(path)
    query: bytes = scope["query_string"]
    renamed = PARAMETERS.get(new_path)
    if query and (renamed is not None or new_path == MOVED.path):
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        if path == MOVED.path and not MOVED.parameters.isdisjoint(name for name, _ in pairs):
            new_path = MOVED.new_path
        if renamed is not None and any(name in renamed for name, _ in pairs):
            query = urlencode([(renamed.get(name, name), value) for name, value in pairs]).encode()
    if new_path == path and query == scope["query_string"]:
        return None
    return {**scope, "path": new_path, "raw_path": quote(new_path).encode(), "query_string": query}


def _new_path(path: str) -> str:
    for old, new in PATHS.items():
        if path == old or path.startswith(f"{old}/"):
            return new + path[len(old) :]
    return path


def _headers(new_path: str) -> list[tuple[bytes, bytes]]:
    link = f'<{quote(new_path)}>; rel="successor-version", </docs>; rel="deprecation"'
    return [
        (b"deprecation", b"@%d" % OLD_SINCE.timestamp()),
        (b"sunset", format_datetime(ANSWERED_UNTIL, usegmt=True).encode()),
        (b"link", link.encode()),
    ]
