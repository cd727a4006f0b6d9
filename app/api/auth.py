"""Who is asking? A bearer token, or the session that a page got for it."""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable

import structlog
from starlette.datastructures import Headers
from starlette.types import Scope

from app.api.failures import FailureLimit
from app.api.known_tokens import MAX_REMEMBERED, KnownTokens
from app.api.principal import ROOT, ROOT_ID, Principal, of_token
from app.api.sessions import Sessions, check_same_origin, session_cookie
from app.errors import Unauthorised
from app.store import token_text
from app.store.engine import Store
from app.store.tokens import TokenRecord

log = structlog.get_logger()

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_SEND_ONE = "send 'Authorization: Bearer pl_...', or sign in on the page"
MAX_SECRET_CHARS = 512  # of what a caller claims to be a token


class Access:
    """Knows the root token, the stored tokens, and the sessions of both.

    Whoever asked with a good token a moment ago is known by a hash of what they sent: in a few
    microseconds, and without the database.
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
        self._tokens = KnownTokens(store, monotonic=monotonic, now_s=now_s)
        self._now_s = now_s
        self._monotonic = monotonic
        self._recent: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        self._failures = FailureLimit(monotonic)
        self.sessions = Sessions(root_token, session_s=session_s, now_s=now_s)

    def recent(self, scope: Scope) -> Principal | None:
        """The caller, if they asked with the same good token a moment ago."""
        authorization = header(scope, b"authorization")
        if authorization is None:
            return None
        found = self._recent.get(hashlib.sha256(authorization).digest())
        return found[0] if found is not None and found[1] > self._monotonic() else None

    async def admit(self, scope: Scope) -> Principal:
        """The caller, who may go on.

        A good token is never made to wait: many workers may be behind one address.

        Raises:
            Unauthorised: neither a token nor a session of ours.
            TooManyRequests: the same, too often from this address.
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
        """The same, for who only asks whether they are known: raises no TooManyRequests."""
        authorization = header(scope, b"authorization")
        if authorization is None:
            return await self._of_session(scope)
        kind, _, claimed = authorization.decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not claimed.strip():
            raise Unauthorised(f"no token: {_SEND_ONE}")
        found = await self.of_token(claimed.strip())
        if found is None:
            raise Unauthorised("the bearer token is not known here")
        self._remember(authorization, *found)
        return found[0]

    async def is_known(self, scope: Scope) -> bool:
        """Whether who sent this request would still be let in.

        Raises:
            StoreUnavailable: the database is asked and does not answer.
        """
        try:
            await self.caller(scope)
        except Unauthorised:
            return False
        return True

    async def of_token(self, claimed: str) -> tuple[Principal, float] | None:
        """Who has this token, and until when by the monotonic clock that is sure enough.

        Raises:
            Unauthorised: they had it, and it is revoked or over.
            StoreUnavailable: the database does not answer.
        """
        claimed = claimed[:MAX_SECRET_CHARS]
        digest = hashlib.sha256(claimed.encode(errors="replace")).digest()
        if hmac.compare_digest(digest, self._root_digest):
            return ROOT, float("inf")
        text = token_text.parse(claimed)
        record = None if text is None else await self._tokens.find(text.token_id)
        if text is None or record is None:
            return None
        if not hmac.compare_digest(record.digest, text.digest):
            return None
        self._check_good(record)
        self._tokens.note_use(record)
        return of_token(record), self._tokens.good_until_s(record)

    def _check_good(self, record: TokenRecord) -> None:
        # Only for who has the secret: to all others an old token is as good as none.
        if record.is_good(self._now_s()):
            return
        reason = "was revoked" if record.revoked_s is not None else "is over"
        log.warning("token refused", token=record.token_id, reason=reason)
        raise Unauthorised(f"this token {reason}: ask for another one")

    def forget(self, token_id: str) -> None:
        """The token has changed; may be called from any thread."""
        self._tokens.forget(token_id)
        self._recent.clear()

    async def close(self) -> None:
        """Wait for what is still being written down."""
        await self._tokens.close()

    async def _of_session(self, scope: Scope) -> Principal:
        headers = Headers(scope=scope)
        cookie = session_cookie(headers)
        token_id = None if cookie is None else self.sessions.token_id(cookie)
        caller = None if token_id is None else await self._with_id(token_id)
        if caller is None:
            raise Unauthorised(f"no token: {_SEND_ONE}")
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
        return of_token(record)

    def _remember(self, authorization: bytes, caller: Principal, until_s: float) -> None:
        self._recent[hashlib.sha256(authorization).digest()] = caller, until_s
        while len(self._recent) > MAX_REMEMBERED:
            self._recent.popitem(last=False)


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this name, in lower case; for what is asked of every request."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def client_address(scope: Scope) -> str:
    """Where the request comes from; behind a proxy, what the proxy is trusted to say."""
    client = scope.get("client")
    return str(client[0]) if client else ""
