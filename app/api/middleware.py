"""What happens to every request before a route sees it, as plain ASGI from the outside in.

Thousands of batches come through here every second, so nothing is parsed twice, and what can be
made ready before is.
"""

import itertools
import re
import secrets
from collections.abc import Collection

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import SAFE_METHODS, Access, header
from app.api.errors import failure, refusal
from app.api.limits import ProjectLimits
from app.api.picture_links import PictureLinks, is_link
from app.api.principal import TRACES_PATH, Principal, attach, needed_scope
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
OVER_TLS = {"strict-transport-security": "max-age=31536000"}
OF_API = {"cache-control": "no-store"}
_MAX_KNOWN_HOSTS = 1000
_HOST = re.compile(r"(\[(?P<ip_v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(:[0-9]{1,5})?")
_LONGEST_LENGTH = 15  # digits; int() of very many would be slow


class SecurityHeaders:
    """Puts the headers of `HEADERS` and a request id on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._process = secrets.token_hex(8)  # so that two processes never use the same id
        self._counter = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = f"{self._process}{next(self._counter):016x}"
        # Each request runs in a context of its own, so there is nothing to take back.
        structlog.contextvars.bind_contextvars(request_id=request_id)
        is_of_api = _is_of_api(scope["path"])
        ready = headers_of_all(of_api=is_of_api, over_tls=scope["scheme"] == "https")
        has_own = is_link(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = (b"x-request-id", request_id.encode())
                given = message["headers"]
                # A linked picture may be kept, and shown elsewhere.
                usual = [each for each in ready if each[0] not in dict(given)] if has_own else ready
                message["headers"] = [*given, *usual, own]
            await send(message)

        return await self._app(scope, receive, send_with_headers)


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


# By whether it is for the API, and whether it goes over TLS.
_READY = {
    (of_api, over_tls): _encoded(
        HEADERS | (OF_API if of_api else {}) | (OVER_TLS if over_tls else {})
    )
    for of_api in (False, True)
    for over_tls in (False, True)
}


def headers_of_all(*, of_api: bool, over_tls: bool) -> list[tuple[bytes, bytes]]:
    """What every answer has beside its own headers, and its request's id."""
    return _READY[of_api, over_tls]


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
        self._known: set[bytes | None] = set()  # headers that were looked at and are ours

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and "*" not in self._allowed:
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
    """A Host header's name, without port and brackets; None of what is no host."""
    found = _HOST.fullmatch(host)
    return None if found is None else (found["ip_v6"] or found["name"]).lower()


class Guard:
    """Lets nobody into /api who may not do what they ask, before a byte of the body is read."""

    def __init__(
        self, app: ASGIApp, *, access: Access, links: PictureLinks, limits: ProjectLimits
    ) -> None:
        self._app = app
        self._access = access
        self._links = links
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not _is_guarded(scope):
            return await self._app(scope, receive, send)
        if is_link(scope):
            caller = await self._links.admit(scope)
        else:
            caller = self._access.recent(scope) or await self._access.admit(scope)
            needed = needed_scope(scope["method"], scope["path"])
            if needed is not None:
                caller.check(needed)
        attach(scope, caller)
        return await self._app(scope, self._counted(scope, receive, caller), send)

    def _counted(self, scope: Scope, receive: Receive, caller: Principal) -> Receive:
        length = header(scope, b"content-length")
        if length is None and scope["method"] not in SAFE_METHODS:
            self._limits.take(caller.project, 0)
            return self._limits.counted(caller.project, receive)
        self._limits.take(caller.project, _size_bytes(length))
        return receive


def _size_bytes(length: bytes | None) -> int:
    # One that is no number, or too large a one, is refused further in.
    is_number = length is not None and length.isdigit() and len(length) <= _LONGEST_LENGTH
    return int(length) if length is not None and is_number else 0


def _is_guarded(scope: Scope) -> bool:
    path: str = scope["path"]
    return _is_of_api(path) and (scope["method"], path) not in OPEN


def _is_of_api(path: str) -> bool:
    return path.startswith(API_PREFIX) or path == TRACES_PATH
