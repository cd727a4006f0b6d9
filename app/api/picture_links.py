"""Pictures for who has a link and no token: the link itself says what its holder may see."""

from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from app.alerts.picture_link import KEY_NAME, PATH, Picture, opened
from app.api.auth import client_address
from app.api.failures import FailureLimit
from app.api.principal import Principal
from app.errors import PictureNotFound
from app.store import service_keys
from app.store.engine import Store
from app.store.tokens import Scope as TokenScope

_NO_KEY_FOR_S = 4.0
_PICTURE = "paceline.picture"
_SCOPES: frozenset[TokenScope] = frozenset({"read"})


def is_link(scope: Scope) -> bool:
    """Whether somebody asks for a picture by its link."""
    return scope["method"] == "GET" and str(scope["path"]).startswith(PATH)


class PictureLinks:
    """Knows good links by the key that the consumers make them with."""

    def __init__(
        self, store: Store, *, now_s: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._now_s = now_s
        self._monotonic = monotonic
        self._key: bytes | None = None
        self._asked_s = float("-inf")
        self._failures = FailureLimit(monotonic, of="links")

    async def admit(self, scope: Scope) -> Principal:
        """Who has the link: somebody who may read of that one job, of which this asks one chart.

        A good link is never made to wait: many people may be behind one address.

        Raises:
            PictureNotFound: the link is none of ours, or over.
            TooManyRequests: the same, too often from this address.
            StoreUnavailable: the database is asked for the key and does not answer.
        """
        picture = await self._opened(str(scope["path"]).removeprefix(PATH))
        if picture is None:
            address = client_address(scope)
            self._failures.check(address)
            self._failures.note(address)
            raise PictureNotFound
        scope[_PICTURE] = picture
        return Principal(picture.project, _SCOPES, picture.job, "picture", "link to a picture")

    async def _opened(self, link: str) -> Picture | None:
        key = await self._shared_key()
        return None if key is None else opened(link, key, self._now_s())

    async def _shared_key(self) -> bytes | None:
        """None as long as nobody has made a link; asked for at most every few seconds."""
        if self._key is None and self._asked_s + _NO_KEY_FOR_S <= self._monotonic():
            self._key = await run_in_threadpool(self._read_key)
            self._asked_s = self._monotonic()
        return self._key

    def _read_key(self) -> bytes | None:
        with self._store.read() as conn:
            return service_keys.find(conn, KEY_NAME)


def picture_of(scope: Scope) -> Picture | None:
    """Of what a link that was let in is; None for every other request."""
    found: Picture | None = scope.get(_PICTURE)
    return found
