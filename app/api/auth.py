"""Who is asking? A bearer token, or the session that a page got for it."""

import base64
import hashlib
import hmac
from collections import OrderedDict, deque
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from app.errors import Forbidden, TooManyRequests, Unauthorised

COOKIE = "paceline_session"
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
MAX_SECRET_CHARS = 512  # of what a caller claims to be a token


class Access:
    """Knows one token, and the sessions signed with a key derived from it.

    Sessions are kept nowhere: every API process with the same token takes them, and a new token
    ends them all.
    """

    def __init__(self, token: str, *, session_s: float, now_s: Callable[[], float]) -> None:
        self._digest = hashlib.sha256(token.encode()).digest()
        self._session_key = hmac.digest(token.encode(), b"paceline session v1", "sha256")
        self._now_s = now_s
        self.session_s = session_s

    def is_token(self, claimed: str) -> bool:
        """Whether this is the token, in a time that tells nothing about it."""
        claimed_digest = hashlib.sha256(claimed.encode(errors="replace")).digest()
        return hmac.compare_digest(claimed_digest, self._digest)

    def new_session(self) -> str:
        """Value of a session cookie that is good from now on."""
        return self._signed(int(self._now_s() + self.session_s))

    def is_session(self, cookie: str) -> bool:
        """Whether we signed this cookie and its time is not over."""
        expiry = cookie.partition(".")[0]
        if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 12):
            return False
        is_ours = hmac.compare_digest(cookie.encode(), self._signed(int(expiry)).encode())
        return is_ours and int(expiry) > self._now_s()

    def admit(self, method: str, scheme: str, headers: Headers) -> None:
        """Returns if the request may go on.

        Raises:
            Unauthorised: neither our token nor our session.
            Forbidden: a session, used from another site's page.
        """
        authorization = headers.get("authorization")
        if authorization is not None:
            kind, _, claimed = authorization.partition(" ")
            if kind.lower() == "bearer" and self.is_token(claimed.strip()[:MAX_SECRET_CHARS]):
                return
            raise Unauthorised("the bearer token is not known here")
        cookie = session_cookie(headers)
        if cookie is None or not self.is_session(cookie):
            raise Unauthorised("send 'Authorization: Bearer pl_...', or sign in on the page")
        if method not in SAFE_METHODS:
            check_same_origin(scheme, headers)

    def _signed(self, expiry: int) -> str:
        seal = hmac.digest(self._session_key, str(expiry).encode(), "sha256")
        return f"{expiry}.{base64.urlsafe_b64encode(seal).decode().rstrip('=')}"


def session_cookie(headers: Headers) -> str | None:
    """The session cookie of a request, if it has one that can be read."""
    jar: SimpleCookie = SimpleCookie()
    try:
        for line in headers.getlist("cookie"):
            jar.load(line)
    except CookieError:
        return None
    morsel = jar.get(COOKIE)
    value = morsel.value if morsel is not None else None
    return value if value is not None and value.isascii() and len(value) <= 128 else None


def check_same_origin(scheme: str, headers: Headers) -> None:
    """Returns if our own page, or no page at all, sends the request.

    Raises:
        Forbidden: another site's page may have sent it.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        is_own = site in {"same-origin", "none"}
    else:
        origin = urlsplit(headers.get("origin", ""))
        is_own = (origin.scheme, origin.netloc) == (scheme, headers.get("host"))
    if not is_own:
        raise Forbidden("a session may change things from our own page only")


class FailureLimit:
    """Counts failures by client address; who has too many has to wait."""

    def __init__(
        self, now_s: Callable[[], float], *, most: int = 10, within_s: float = 60.0
    ) -> None:
        self._now_s = now_s
        self._most = most
        self._within_s = within_s
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Returns if the address may try (again).

        Raises:
            TooManyRequests: with the time to wait.
        """
        failures = self._failures.get(address, deque())
        now_s = self._now_s()
        while failures and failures[0] <= now_s - self._within_s:
            failures.popleft()
        if len(failures) >= self._most:
            wait_s = int(failures[0] + self._within_s - now_s) + 1
            raise TooManyRequests("too many failed sign-ins: wait", retry_after_s=wait_s)

    def note(self, address: str) -> None:
        """Remember one failure; of very many addresses, the latest ones."""
        self._failures.setdefault(address, deque()).append(self._now_s())
        self._failures.move_to_end(address)
        while len(self._failures) > 10_000:
            self._failures.popitem(last=False)
