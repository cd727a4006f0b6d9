"""Authentication by picture link: the signed link itself says what its holder may see."""

from collections.abc import Callable
from typing import cast

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from app.alerts.picture_links import KEY_NAME, PICTURES_PATH, Picture, verify_link
from app.api.http.auth import client_address
from app.api.http.limits import FailureLimit
from app.api.http.principal import Principal
from app.errors import PictureNotFound, SecretsLocked
from app.store import service_state
from app.store.database import Store
from app.store.tokens import Scope as TokenScope

log = structlog.get_logger()

_KEY_RETRY_S = 4.0
_SCOPE_KEY = "paceline.picture"
_SCOPES: frozenset[TokenScope] = frozenset({"read"})


class PictureLinkAuth:
    """Verifies links by the key that the consumers sign them with."""

    def __init__(
        self, store: Store, *, now_s: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._now_s = now_s
        self._monotonic = monotonic
        self._key: bytes | None = None
        self._asked_s = float("-inf")
        self._failures = FailureLimit(monotonic, attempts="links")

    async def admit(self, scope: Scope) -> Principal:
        """A caller that may read the one job of the link.

        A good link is never delayed: many people may share one address.

        Raises:
            PictureNotFound: the signature is wrong, or the link has expired.
            TooManyRequests: too many of these from this address.
            StoreUnavailable: the database is asked for the key and does not answer.
        """
        key = await self._shared_key()
        link = str(scope["path"]).removeprefix(PICTURES_PATH)
        picture = None if key is None else verify_link(link, key, self._now_s())
        if picture is None:
            self._failures.add(client_address(scope))
            raise PictureNotFound
        scope[_SCOPE_KEY] = picture
        return Principal(picture.project, _SCOPES, picture.job, "picture", "link to a picture")

    async def _shared_key(self) -> bytes | None:
        """The signing key, read at most every `_KEY_RETRY_S`; None before the first link."""
        if self._key is None and self._asked_s + _KEY_RETRY_S <= self._monotonic():
            self._key = await run_in_threadpool(self._read_key)
            self._asked_s = self._monotonic()
        return self._key

    def _read_key(self) -> bytes | None:
        with self._store.read() as conn:
            try:
                return service_state.find_key(conn, KEY_NAME)
            except SecretsLocked as error:
                log.warning("no picture can be shown", reason=str(error))
                return None


def linked_picture(scope: Scope) -> Picture | None:
    """The picture of an admitted link; None for every other request."""
    return cast(Picture | None, scope.get(_SCOPE_KEY))
