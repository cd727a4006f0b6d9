"""Authentication by bearer token or by session cookie.

`TokenCache` caches tokens for seconds, so that authentication is fast. While the database is away,
known tokens stay valid for ten minutes; a token can be revoked meanwhile only if the database is
away from this process alone. Sessions are signed cookies and stored nowhere.
"""

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

import structlog
from cachetools import TLRUCache, TTLCache
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Scope

from app.api.http.caching import LookupCache
from app.api.http.limits import FailureLimit
from app.api.http.principal import CANARY, ROOT, ROOT_ID, Principal, principal_of_token
from app.errors import Forbidden, PacelineError, Unauthorised
from app.store import tokens
from app.store.database import Store
from app.store.tokens import TokenRecord

COOKIE = "paceline_session"
MAX_COOKIE_CHARS = 128
_COOKIE = re.compile(r"([0-9A-Za-z]{1,32})\.([0-9]{1,12})\.[0-9A-Za-z_-]{43}")


class SessionCookies:
    """Signed cookies with a token's id and an expiry time.

    Every API process with the same root token accepts them; a new root token ends all sessions.
    """

    def __init__(self, root_token: str, *, session_s: float, now_s: Callable[[], float]) -> None:
        self._key = hmac.digest(root_token.encode(), b"paceline session v2", "sha256")
        self._now_s = now_s
        self.session_s = session_s

    def new(self, token_id: str) -> str:
        """Value of a new cookie, valid for `session_s`."""
        return self._signed(token_id, int(self._now_s() + self.session_s))

    def token_id(self, cookie: str) -> str | None:
        """The token's id in a cookie; None if the signature is wrong or the cookie has expired."""
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
    """The session cookie of a request; None if there is none or it is malformed."""
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
    """Return if the request comes from our own page, or from no page.

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
        raise Forbidden("a session can change things only from the service's own pages")


log = structlog.get_logger()

# Every process refuses a revoked token within 5 s; the fifth second is for the lookup.
TOKEN_FRESH_S = 4.0
TOKEN_STALE_S = 600.0
MAX_TOKENS = 10_000


class TokenCache:
    """Looks a token up once for all concurrent requests that use it.

    Ids of no token are in a cache of their own: made-up ids evict no token.
    """

    def __init__(
        self, store: Store, *, monotonic: Callable[[], float], now_s: Callable[[], float]
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._now_s = now_s
        self._found = LookupCache(
            self._look_up,
            fresh_s=TOKEN_FRESH_S,
            stale_s=TOKEN_STALE_S,
            max_keys=MAX_TOKENS,
            keep_if=lambda record: record is not None,
            monotonic=monotonic,
        )
        self._unknown = self._no_unknown_ids()
        self._marking: set[asyncio.Task[None]] = set()

    async def find(self, token_id: str) -> TokenRecord | None:
        """The token as it was at most `TOKEN_FRESH_S` ago, or when the database last answered.

        None if there is none.

        Raises:
            StoreUnavailable: the database does not answer, and the token is not known here.
        """
        if token_id in self._unknown:
            return None
        found = await self._found.get(token_id)
        if found is None:
            self._unknown[token_id] = None
        return found

    def good_until_s(self, record: TokenRecord) -> float:
        """Monotonic time until which the token need not be looked up again."""
        until_s = self._found.fresh_until_s(record.token_id)
        if record.expires_s is None:
            return until_s
        return min(until_s, self._monotonic() + record.expires_s - self._now_s())

    def note_use(self, record: TokenRecord) -> None:
        """Record in the background that the token is in use, at most once a minute."""
        now_s = self._now_s()
        is_due = (record.last_used_s or 0.0) < tokens.used_minute_s(now_s)
        if is_due and not self._found.is_away():
            task = asyncio.create_task(run_in_threadpool(self._mark, record.token_id, now_s))
            self._marking.add(task)
            task.add_done_callback(self._marking.discard)

    def forget(self, token_id: str) -> None:
        """Look the token up next time; may be called from any thread."""
        self._found.forget(token_id)
        self._unknown = self._no_unknown_ids()  # replaced, as TTLCache is not thread-safe

    async def close(self) -> None:
        """Wait until every use is recorded."""
        await asyncio.gather(*self._marking)

    def _no_unknown_ids(self) -> TTLCache[str, None]:
        return TTLCache(MAX_TOKENS, TOKEN_FRESH_S, timer=self._monotonic)

    async def _look_up(self, token_id: str) -> TokenRecord | None:
        return await run_in_threadpool(self._read, token_id)

    def _read(self, token_id: str) -> TokenRecord | None:
        with self._store.read() as conn:
            return tokens.find(conn, token_id)

    def _mark(self, token_id: str, now_s: float) -> None:
        try:
            with self._store.write() as conn:
                tokens.mark_used(conn, token_id, now_s=now_s)
        except PacelineError as error:
            log.warning("use of a token not noted", token=token_id, reason=str(error))


SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_HOW_TO_SIGN_IN = "send 'Authorization: Bearer pl_...', or sign in on the page"
MAX_SECRET_CHARS = 512  # longest text that is read as a token


class Authenticator:
    """Authenticates by the root token, stored tokens, and sessions of both.

    A caller that used a good token a moment ago is found by a hash of its header: within
    microseconds and without the database.
    """

    def __init__(
        self,
        root_token: str,
        store: Store,
        *,
        session_s: float,
        now_s: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._root_digest = hashlib.sha256(root_token.encode()).digest()
        self.canary_token = f"pl_canary_{secrets.token_urlsafe(32)}"
        self._canary_digest = hashlib.sha256(self.canary_token.encode()).digest()
        self._tokens = TokenCache(store, monotonic=monotonic, now_s=now_s)
        self._now_s = now_s
        self._monotonic = monotonic
        self._recent = self._no_callers()
        self._failures = FailureLimit(monotonic)
        self.sessions = SessionCookies(root_token, session_s=session_s, now_s=now_s)

    def recent(self, scope: Scope) -> Principal | None:
        """The caller, if the same header was authenticated a moment ago."""
        authorization = header(scope, b"authorization")
        if authorization is None:
            return None
        found = self._recent.get(hashlib.sha256(authorization).digest())
        return None if found is None else found[0]

    async def admit(self, scope: Scope) -> Principal:
        """The authenticated caller.

        A good token is never delayed: many workers may share one address.

        Raises:
            Unauthorised: neither a token nor a session of ours.
            TooManyRequests: too many of these from this address.
            Forbidden: a session, used from another site's page.
            StoreUnavailable: the database is asked and does not answer.
        """
        try:
            return await self.caller(scope)
        except Unauthorised:
            if header(scope, b"authorization") is not None:
                address = client_address(scope)
                self._failures.check(address)
                self._failures.note(address)
            raise

    async def caller(self, scope: Scope) -> Principal:
        """The authenticated caller; like `admit`, but never raises TooManyRequests."""
        authorization = header(scope, b"authorization")
        if authorization is None:
            return await self._of_session(scope)
        kind, _, claimed = authorization.decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not claimed.strip():
            raise Unauthorised(f"no token: {_HOW_TO_SIGN_IN}")
        found = await self.of_token(claimed.strip())
        if found is None:
            raise Unauthorised("unknown bearer token")
        self._remember(authorization, *found)
        return found[0]

    async def is_known(self, scope: Scope) -> bool:
        """Whether the caller of this request is still valid.

        Raises:
            StoreUnavailable: the database is asked and does not answer.
        """
        try:
            await self.caller(scope)
        except Unauthorised:
            return False
        return True

    async def of_token(self, claimed: str) -> tuple[Principal, float] | None:
        """The caller with this token, and the monotonic time until which that may be cached.

        Raises:
            Unauthorised: the token is revoked or has expired.
            StoreUnavailable: the database does not answer.
        """
        claimed = claimed[:MAX_SECRET_CHARS]
        digest = hashlib.sha256(claimed.encode(errors="replace")).digest()
        if hmac.compare_digest(digest, self._root_digest):
            return ROOT, float("inf")
        if hmac.compare_digest(digest, self._canary_digest):
            return CANARY, float("inf")
        text = tokens.parse_token(claimed)
        record = None if text is None else await self._tokens.find(text.token_id)
        if text is None or record is None:
            return None
        if not hmac.compare_digest(record.digest, text.digest):
            return None
        self._check_good(record)
        self._tokens.note_use(record)
        return principal_of_token(record), self._tokens.good_until_s(record)

    def _check_good(self, record: TokenRecord) -> None:
        # Only callers with the secret learn that the token existed.
        if record.is_good(self._now_s()):
            return
        reason = "was revoked" if record.revoked_s is not None else "is over"
        log.warning("token refused", token=record.token_id, reason=reason)
        raise Unauthorised(f"this token {reason}: ask for another one")

    def forget(self, token_id: str) -> None:
        """Drop cached data of a changed token; may be called from any thread."""
        self._tokens.forget(token_id)
        self._recent = self._no_callers()  # replaced, as TLRUCache is not thread-safe

    async def close(self) -> None:
        """Wait until every use is recorded."""
        await self._tokens.close()

    async def _of_session(self, scope: Scope) -> Principal:
        headers = Headers(scope=scope)
        cookie = session_cookie(headers)
        token_id = None if cookie is None else self.sessions.token_id(cookie)
        caller = None if token_id is None else await self._with_id(token_id)
        if caller is None:
            raise Unauthorised(f"no token: {_HOW_TO_SIGN_IN}")
        if scope["method"] not in SAFE_METHODS:
            check_same_origin(scope["scheme"], headers)
        return caller

    async def _with_id(self, token_id: str) -> Principal | None:
        if token_id == ROOT_ID:
            return ROOT
        record = await self._tokens.find(token_id)
        if record is None or not record.is_good(self._now_s()):
            return None
        self._tokens.note_use(record)
        return principal_of_token(record)

    def _no_callers(self) -> TLRUCache[bytes, tuple[Principal, float]]:
        return TLRUCache(MAX_TOKENS, lambda _, found, __: found[1], timer=self._monotonic)

    def _remember(self, authorization: bytes, caller: Principal, until_s: float) -> None:
        self._recent[hashlib.sha256(authorization).digest()] = caller, until_s


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this name (lower case); faster than `Headers`."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def client_address(scope: Scope) -> str:
    """Client address of the request; behind a trusted proxy, the address that it forwards."""
    client = scope.get("client")
    return str(client[0]) if client else ""
