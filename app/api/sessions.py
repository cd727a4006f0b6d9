"""Sessions: what a page gets for its token, signed and kept nowhere."""

import base64
import hmac
import re
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from app.errors import Forbidden

COOKIE = "paceline_session"
MAX_COOKIE_CHARS = 128
_COOKIE = re.compile(r"([0-9A-Za-z]{1,32})\.([0-9]{1,12})\.[0-9A-Za-z_-]{43}")


class Sessions:
    """Cookies that name a token by its id, and are good for a while.

    Every API process with the same root token takes them, and a new root token ends them all.
    """

    def __init__(self, root_token: str, *, session_s: float, now_s: Callable[[], float]) -> None:
        self._key = hmac.digest(root_token.encode(), b"paceline session v2", "sha256")
        self._now_s = now_s
        self.session_s = session_s

    def new(self, token_id: str) -> str:
        """Value of a cookie that is good from now on."""
        return self._signed(token_id, int(self._now_s() + self.session_s))

    def token_id(self, cookie: str) -> str | None:
        """Whose session it is; None if we did not sign it, or its time is over."""
        found = _COOKIE.fullmatch(cookie)
        if found is None:
            return None
        token_id, expiry_s = found[1], int(found[2])
        is_ours = hmac.compare_digest(cookie.encode(), self._signed(token_id, expiry_s).encode())
        return token_id if is_ours and expiry_s > self._now_s() else None

    def _signed(self, token_id: str, expiry_s: int) -> str:
        said = f"{token_id}.{expiry_s}"
        seal = hmac.digest(self._key, said.encode(), "sha256")
        return f"{said}.{base64.urlsafe_b64encode(seal).decode().rstrip('=')}"


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
    return value if value and value.isascii() and len(value) <= MAX_COOKIE_CHARS else None


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
