"""Authentication by bearer token or by session cookie.

Tokens and sessions are cached for seconds (`CredentialCache`), so that authentication is fast. A
session ends everywhere within five seconds after it, or its token, was revoked.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import structlog
from cachetools import TLRUCache, TTLCache
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Scope

from app.api.http.caching import LookupCache, store_lookup
from app.api.http.limits import FailureLimit
from app.api.http.principal import CANARY, ROOT, ROOT_ID, Principal, principal_of_token
from app.errors import Forbidden, PacelineError, Unauthorised
from app.store import tokens
from app.store.credentials import sessions
from app.store.credentials.sessions import SessionRecord
from app.store.database import Connection, Store
from app.store.tokens import TokenRecord

log = structlog.get_logger()

COOKIE = "paceline_session"
_COOKIE = re.compile(r"([0-9a-f]{16})\.[0-9A-Za-z_-]{43}")
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_HOW_TO_SIGN_IN = "send 'Authorization: Bearer pl_...', or sign in on the page"
MAX_SECRET_CHARS = 512  # longest text that is read as a token
# Every process refuses a revoked token or session within 5 s; the fifth second is for the lookup.
FRESH_S = 4.0
STALE_S = 600.0
MAX_CREDENTIALS = 10_000
MAX_LENGTH_DIGITS = 15  # of a body's length; int() of very many would be slow


def session_cookie(headers: Headers) -> str | None:
    """The session cookie of a request; None without one, or if the header is malformed."""
    jar: SimpleCookie = SimpleCookie()
    try:
        for line in headers.getlist("cookie"):
            jar.load(line)
    except CookieError:
        return None
    morsel = jar.get(COOKIE)
    return None if morsel is None else morsel.value


def check_same_origin(scheme: str, headers: Headers) -> None:
    """Raise Forbidden if another site's page may have sent the request."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        is_own = site in {"same-origin", "none"}
    else:
        origin = urlsplit(headers.get("origin", ""))
        is_own = (origin.scheme, origin.netloc) == (scheme, headers.get("host"))
    if not is_own:
        raise Forbidden("a session can change things only from the service's own pages")


class Marker(Protocol):
    """Notes in the database that the record with this id is in use."""

    def __call__(self, conn: Connection, record_id: str, /, *, now_s: float) -> None:
        """Note the use at this Unix time."""


C = TypeVar("C", TokenRecord, SessionRecord)


class CredentialCache(Generic[C]):
    """Records by their ids, looked up once for all requests that use them.

    Ids of no record are in a cache of their own: made-up ids evict no token. While the database is
    away, known records stay valid for ten minutes; one can be revoked meanwhile only if the
    database is away from this process alone. `find` reads a record, `mark_used` notes its use.
    """

    def __init__(
        self,
        store: Store,
        find: Callable[[Connection, str], C | None],
        mark_used: Marker,
        *,
        monotonic: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._mark_row = mark_used
        self._monotonic = monotonic
        self._now_s = now_s
        self._records: LookupCache[str, C | None] = LookupCache(
            store_lookup(store, find),
            fresh_s=FRESH_S,
            stale_s=STALE_S,
            max_keys=MAX_CREDENTIALS,
            keep_if=lambda record: record is not None,
            monotonic=monotonic,
        )
        self._unknown = self._no_unknown_ids()
        self._marking: set[asyncio.Task[None]] = set()

    async def find(self, record_id: str) -> C | None:
        """The record as it was at most `FRESH_S` ago, or when the database last answered.

        None if there is none.

        Raises:
            StoreUnavailable: the database does not answer, and the record is not known here.
        """
        if record_id in self._unknown:
            return None
        record = await self._records.get(record_id)
        if record is None:
            self._unknown[record_id] = None
        return record

    def good_until_s(self, record_id: str, record: C) -> float:
        """Monotonic time until which the record need not be looked up again."""
        until_s = self._records.fresh_until_s(record_id)
        if record.expires_s is None:
            return until_s
        return min(until_s, self._monotonic() + record.expires_s - self._now_s())

    def note_use(self, record_id: str, record: C) -> None:
        """Record in the background that it is in use, at most once a minute."""
        now_s = self._now_s()
        is_due = (record.last_used_s or 0.0) < tokens.used_minute_s(now_s)
        if is_due and not self._records.is_away():
            task = asyncio.create_task(run_in_threadpool(self._mark, record_id, now_s))
            self._marking.add(task)
            task.add_done_callback(self._marking.discard)

    def forget(self, record_id: str) -> None:
        """Look the record up next time; may be called from any thread."""
        self._records.forget(record_id)
        self._unknown = self._no_unknown_ids()  # replaced, as TTLCache is not thread-safe

    async def close(self) -> None:
        """Wait until every use is recorded."""
        await asyncio.gather(*self._marking)

    def _no_unknown_ids(self) -> TTLCache[str, None]:
        return TTLCache(MAX_CREDENTIALS, FRESH_S, timer=self._monotonic)

    def _mark(self, record_id: str, now_s: float) -> None:
        try:
            with self._store.write() as conn:
                self._mark_row(conn, record_id, now_s=now_s)
        except PacelineError as error:
            log.warning("use not noted", credential=record_id, reason=str(error))


class Authenticator:
    """Authenticates by the root token, stored tokens, and sessions of both.

    A caller that used a good token a moment ago is looked up by a hash of its header: within
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
        self._cookie_key = hmac.digest(root_token.encode(), b"paceline session v3", "sha256")
        self.canary_token = f"pl_canary_{secrets.token_urlsafe(32)}"
        self._canary_digest = hashlib.sha256(self.canary_token.encode()).digest()
        self._store = store
        clocks = {"monotonic": monotonic, "now_s": now_s}
        self._tokens: CredentialCache[TokenRecord] = CredentialCache(
            store, tokens.find, tokens.mark_used, **clocks
        )
        self._sessions: CredentialCache[SessionRecord] = CredentialCache(
            store, sessions.find, sessions.mark_used, **clocks
        )
        self._now_s = now_s
        self._monotonic = monotonic
        self._recent = self._no_callers()
        self._failures = FailureLimit(monotonic)
        self.session_s = session_s

    def recent(self, scope: Scope) -> Principal | None:
        """The caller, if the same header was authenticated a moment ago."""
        authorization = header(scope, b"authorization")
        if authorization is None:
            return None
        known = self._recent.get(hashlib.sha256(authorization).digest())
        return None if known is None else known[0]

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
                self._failures.add(client_address(scope))
            raise

    async def caller(self, scope: Scope) -> Principal:
        """The authenticated caller; like `admit`, but never raises TooManyRequests."""
        authorization = header(scope, b"authorization")
        if authorization is None:
            return await self._of_session(scope)
        kind, _, claimed = authorization.decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not claimed.strip():
            raise Unauthorised(f"no token: {_HOW_TO_SIGN_IN}")
        admitted = await self.of_token(claimed.strip())
        if admitted is None:
            raise Unauthorised("unknown bearer token")
        self._recent[hashlib.sha256(authorization).digest()] = admitted
        return admitted[0]

    async def is_known(self, scope: Scope) -> bool:
        """Whether this request's caller is still valid; raises StoreUnavailable if not known."""
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
        self._tokens.note_use(record.token_id, record)
        return principal_of_token(record), self._tokens.good_until_s(record.token_id, record)

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

    def forget_session(self, session_id: str) -> None:
        """Look the session up next time; may be called from any thread."""
        self._sessions.forget(session_id)

    async def close(self) -> None:
        """Wait until every use is recorded."""
        await self._tokens.close()
        await self._sessions.close()

    def begin_session(self, caller: Principal, *, user_agent: str, address: str) -> str:
        """Save a session for `session_s`; the value of its cookie. Raises StoreUnavailable."""
        session_id = secrets.token_hex(8)
        cookie = f"{session_id}.{secrets.token_urlsafe(32)}"
        now_s = self._now_s()
        record = SessionRecord(
            session_id=session_id,
            token_id=caller.token_id,
            project=caller.project,
            user_agent=user_agent,
            address=address,
            created_s=now_s,
            expires_s=now_s + self.session_s,
            last_used_s=None,
            ended_s=None,
            digest=self._cookie_digest(cookie),
        )
        with self._store.write() as conn:
            sessions.begin(conn, record)
        return cookie

    async def session_of(self, scope: Scope) -> SessionRecord | None:
        """The good session of the request's cookie; None if there is none.

        Raises:
            StoreUnavailable: the database is asked and does not answer.
        """
        cookie = _COOKIE.fullmatch(session_cookie(Headers(scope=scope)) or "")
        record = None if cookie is None else await self._sessions.find(cookie[1])
        if cookie is None or record is None or not record.is_good(self._now_s()):
            return None
        is_ours = hmac.compare_digest(record.digest, self._cookie_digest(cookie[0]))
        return record if is_ours else None

    def _cookie_digest(self, cookie: str) -> str:
        # Keyed: a new root token ends all sessions.
        return hmac.digest(self._cookie_key, cookie.encode(), "sha256").hex()

    async def _of_session(self, scope: Scope) -> Principal:
        session = await self.session_of(scope)
        caller = None if session is None else await self._with_id(session.token_id)
        if session is None or caller is None:
            raise Unauthorised(f"no token: {_HOW_TO_SIGN_IN}")
        self._sessions.note_use(session.session_id, session)
        if scope["method"] not in SAFE_METHODS:
            check_same_origin(scope["scheme"], Headers(scope=scope))
        return caller

    async def _with_id(self, token_id: str) -> Principal | None:
        if token_id == ROOT_ID:
            return ROOT
        record = await self._tokens.find(token_id)
        if record is None or not record.is_good(self._now_s()):
            return None
        self._tokens.note_use(record.token_id, record)
        return principal_of_token(record)

    def _no_callers(self) -> TLRUCache[bytes, tuple[Principal, float]]:
        return TLRUCache(MAX_CREDENTIALS, lambda _, known, __: known[1], timer=self._monotonic)


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this name (lower case); faster than `Headers`."""
    return next((value for key, value in scope["headers"] if key == name), None)


def claimed_length(scope: Scope) -> int | None:
    """Content-Length in bytes; None if there is none, or no number that a body may have."""
    length = header(scope, b"content-length") or b""
    return int(length) if length.isdigit() and len(length) <= MAX_LENGTH_DIGITS else None


def client_address(scope: Scope) -> str:
    """Client address of the request; behind a trusted proxy, the address that it forwards."""
    client = scope.get("client")
    return str(client[0]) if client else ""
