"""What happens to every request before a route sees it, as plain ASGI from the outside in."""

import uuid
from collections.abc import Collection

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import Access
from app.api.errors import failure, refusal
from app.errors import PacelineError, WrongHost

API_PREFIX = "/api/"
# A page asks whether it has a session, and gets one by signing in; all else under /api wants one.
OPEN = {("GET", "/api/v1/session"), ("POST", "/api/v1/session")}
CSP = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


class SecurityHeaders:
    """Puts the headers of `HEADERS` and a request id on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = uuid.uuid4().hex

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message), scope, request_id)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._app(scope, receive, send_with_headers)
        return None


def _add_headers(headers: MutableHeaders, scope: Scope, request_id: str) -> None:
    headers["x-request-id"] = request_id
    for name, value in HEADERS.items():
        headers[name] = value
    if scope.get("scheme") == "https":
        headers["strict-transport-security"] = "max-age=31536000"
    if scope["path"].startswith(API_PREFIX):
        headers["cache-control"] = "no-store"


class Refusals:
    """Answers with a problem whatever is raised below, unless an answer has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            answer = (
                refusal(scope, error) if isinstance(error, PacelineError) else failure(scope, error)
            )
            if not has_begun:
                await answer(scope, receive, send)
        return None


class Hosts:
    """Refuses requests for names that are not ours, as a page elsewhere makes by DNS rebinding."""

    def __init__(self, app: ASGIApp, *, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = {name.lower().strip("[]") for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and "*" not in self._allowed:
            host = Headers(scope=scope).get("host", "")
            if host_name(host) not in self._allowed:
                raise WrongHost("this service does not answer for that host: see ALLOWED_HOSTS")
        await self._app(scope, receive, send)


def host_name(host: str) -> str:
    """A Host header's name, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


class Guard:
    """Lets nobody into /api without a token or a session, before a byte of the body is read."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and _is_guarded(scope):
            self._access.admit(scope["method"], scope["scheme"], Headers(scope=scope))
        await self._app(scope, receive, send)


def _is_guarded(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(API_PREFIX) and (scope["method"], path) not in OPEN
