"""Headers, errors, host names and authentication of every request, as plain ASGI.

Thousands of batches a second pass here: nothing is parsed twice, and constants are prepared.
"""

import itertools
import re
import secrets
from collections.abc import Collection
from functools import cache

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.alerts.picture_links import PICTURES_PATH
from app.api.http.auth import SAFE_METHODS, Authenticator, claimed_length, header
from app.api.http.bodies import ProjectRates, sender_of
from app.api.http.errors import refusal
from app.api.http.picture_links import PictureLinkAuth
from app.api.http.principal import SHARE_PATH, TRACES_PATH, attach_principal, needed_scopes
from app.errors import WrongHost

API_PREFIX = "/api/"
# A page asks for its session, and signs in; everything else under /api needs authentication.
UNAUTHENTICATED = {("GET", "/api/v1/session"), ("POST", "/api/v1/session")}
CSP = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
SECURITY_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
TLS_HEADERS = {"strict-transport-security": "max-age=31536000"}
API_HEADERS = {"cache-control": "no-store"}
_MAX_KNOWN_HOSTS = 1000
_HOST = re.compile(r"(\[(?P<ip_v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(:[0-9]{1,5})?")


class HeaderMiddleware:
    """Adds `SECURITY_HEADERS` and a request id to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._process = secrets.token_hex(8)  # so that two processes never use the same id
        self._counter = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request_id = f"{self._process}{next(self._counter):016x}"
        # Each request has its own context, so nothing needs to be unbound.
        structlog.contextvars.bind_contextvars(request_id=request_id)
        over_tls = scope["scheme"] == "https"
        ready = common_headers(of_api=_is_api_path(scope["path"]), over_tls=over_tls)
        has_own = _is_picture_link(scope) or str(scope["path"]).startswith(SHARE_PATH)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = (b"x-request-id", request_id.encode())
                given = message["headers"]
                # Linked pictures may be cached and embedded elsewhere, and shared snapshots have
                # a policy of their own: their own headers win.
                usual = [pair for pair in ready if pair[0] not in dict(given)] if has_own else ready
                message["headers"] = [*given, *usual, own]
            await send(message)

        await self._app(scope, receive, send_with_headers)


@cache
def common_headers(*, of_api: bool, over_tls: bool) -> list[tuple[bytes, bytes]]:
    """Headers of every answer, without the request id."""
    headers = SECURITY_HEADERS | (API_HEADERS if of_api else {}) | (TLS_HEADERS if over_tls else {})
    return [(name.encode(), value.encode()) for name, value in headers.items()]


class ErrorMiddleware:
    """Turns exceptions into problem documents, unless an answer has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            answer = refusal(scope, error)
            if not has_begun:
                await answer(scope, receive, send)


class HostMiddleware:
    """Refuses requests for unknown host names, against DNS rebinding."""

    def __init__(self, app: ASGIApp, *, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = {name.lower().strip("[]") for name in allowed}
        self._known: set[bytes | None] = set()  # Host headers that were checked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if "*" not in self._allowed:
            host = header(scope, b"host")
            if host not in self._known:
                self._check(host)
            if sum(name == b"host" for name, _ in scope["headers"]) > 1:
                raise WrongHost("send one Host header")
        await self._app(scope, receive, send)

    def _check(self, host: bytes | None) -> None:
        if host_name((host or b"").decode("latin-1")) not in self._allowed:
            raise WrongHost(
                "this service does not answer for that host: set PACELINE_ALLOWED_HOSTS"
            )
        if len(self._known) < _MAX_KNOWN_HOSTS:
            self._known.add(host)


def host_name(host: str) -> str | None:
    """The name in a Host header, without port and brackets; None if it is malformed."""
    match = _HOST.fullmatch(host)
    return None if match is None else (match["ip_v6"] or match["name"]).lower()


class AuthMiddleware:
    """Authenticates and authorises requests under /api before their body is read."""

    def __init__(
        self, app: ASGIApp, *, access: Authenticator, links: PictureLinkAuth, limits: ProjectRates
    ) -> None:
        self._app = app
        self._access = access
        self._links = links
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method, path = scope["method"], scope["path"]
        if not _is_api_path(path) or (method, path) in UNAUTHENTICATED:
            return await self._app(scope, receive, send)
        if _is_picture_link(scope):
            caller = await self._links.admit(scope)
        else:
            caller = self._access.recent(scope) or await self._access.admit(scope)
            if needed := needed_scopes(method, path):
                caller.check(*needed)
        attach_principal(scope, caller)
        return await self._app(scope, self._counted(scope, receive), send)

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        sender = sender_of(scope)
        # `BodyLimit` refuses a length that is no number or too large.
        self._limits.take(sender, claimed_length(scope) or 0)
        if header(scope, b"content-length") is not None or scope["method"] in SAFE_METHODS:
            return receive
        return self._limits.counted(sender, receive)


def _is_picture_link(scope: Scope) -> bool:
    return scope["method"] == "GET" and str(scope["path"]).startswith(PICTURES_PATH)


def _is_api_path(path: str) -> bool:
    return path.startswith(API_PREFIX) or path == TRACES_PATH
