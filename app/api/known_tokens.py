"""Which token is whose, as the database says: remembered for a moment, so that asking is fast.

While the database is away, tokens that were good go on: nobody can revoke one meanwhile, either,
unless it is away from this process alone, and that is why they do so for ten minutes only.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from starlette.concurrency import run_in_threadpool

from app.api.last_known import LastKnown
from app.errors import PacelineError, StoreUnavailable
from app.store import tokens
from app.store.engine import Store
from app.store.tokens import TokenRecord

log = structlog.get_logger()

# Revoked tokens are refused within 5 s everywhere: the rest is for looking it up.
REMEMBER_S = 4.0
GOOD_WITHOUT_STORE_S = 600.0
MAX_REMEMBERED = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Lookup:
    found: asyncio.Task[TokenRecord | None]
    until_s: float


class KnownTokens:
    """Looks a token up once for all that use it at the same time.

    Tokens that there are and ids that there are not are remembered apart: whoever makes ids up
    drives nobody's token out.
    """

    def __init__(
        self, store: Store, *, monotonic: Callable[[], float], now_s: Callable[[], float]
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._now_s = now_s
        self._lookups: OrderedDict[str, _Lookup] = OrderedDict()
        self._last_known = LastKnown[TokenRecord](
            good_for_s=GOOD_WITHOUT_STORE_S, max_kept=MAX_REMEMBERED, monotonic=monotonic
        )
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._marking: set[asyncio.Task[None]] = set()

    async def find(self, token_id: str) -> TokenRecord | None:
        """The token as it was at most `REMEMBER_S` ago, or when the database last answered.

        None if there is none.

        Raises:
            StoreUnavailable: the database does not answer, and has not for long, or never told.
        """
        if (known := self._last_known.while_away(token_id)) is not None:
            return known
        try:
            return await self._as_stored(token_id)
        except StoreUnavailable:
            self._last_known.note_away()
            if (known := self._last_known.of(token_id)) is None:
                raise
            return known

    async def _as_stored(self, token_id: str) -> TokenRecord | None:
        if self._unknown.get(token_id, 0.0) > self._monotonic():
            return None
        lookup = self._lookups.get(token_id)
        if lookup is None or lookup.until_s <= self._monotonic():
            lookup = self._begin(token_id)
        try:
            # Shielded: one caller that hangs up must not cancel the others' answer.
            found = await asyncio.shield(lookup.found)
        except PacelineError:
            self._drop(token_id, lookup)
            raise
        if found is None:
            self._drop(token_id, lookup)
            _keep(self._unknown, token_id, lookup.until_s)
        return found

    def good_until_s(self, record: TokenRecord) -> float:
        """Until when, by the monotonic clock, the token need not be looked at again."""
        lookup = self._lookups.get(record.token_id)
        until_s = lookup.until_s if lookup is not None else 0.0
        if record.expires_s is None:
            return until_s
        return min(until_s, self._monotonic() + record.expires_s - self._now_s())

    def note_use(self, record: TokenRecord) -> None:
        """Have it written down, after this request, that the token is in use."""
        now_s = self._now_s()
        is_away = self._last_known.while_away(record.token_id) is not None
        if (record.last_used_s or 0.0) < tokens.used_minute_s(now_s) and not is_away:
            task = asyncio.create_task(run_in_threadpool(self._mark, record.token_id, now_s))
            self._marking.add(task)
            task.add_done_callback(self._marking.discard)

    def forget(self, token_id: str) -> None:
        """Look the token up next time; may be called from any thread."""
        self._lookups.pop(token_id, None)
        self._last_known.forget(token_id)
        self._unknown.pop(token_id, None)

    async def close(self) -> None:
        """Wait for what is still being written down."""
        await asyncio.gather(*self._marking)

    def _begin(self, token_id: str) -> _Lookup:
        found = asyncio.create_task(run_in_threadpool(self._read, token_id))
        lookup = _Lookup(found, self._monotonic() + REMEMBER_S)
        _keep(self._lookups, token_id, lookup)
        return lookup

    def _drop(self, token_id: str, lookup: _Lookup) -> None:
        if self._lookups.get(token_id) is lookup:
            del self._lookups[token_id]

    def _read(self, token_id: str) -> TokenRecord | None:
        with self._store.read() as conn:
            record = tokens.find(conn, token_id)
        if record is not None:
            self._last_known.keep(token_id, record)
        return record

    def _mark(self, token_id: str, now_s: float) -> None:
        try:
            with self._store.write() as conn:
                tokens.mark_used(conn, token_id, now_s=now_s)
        except PacelineError as error:
            log.warning("use of a token not noted", token=token_id, reason=str(error))


def _keep(kept: OrderedDict[str, T], key: str, value: T) -> None:
    kept[key] = value
    while len(kept) > MAX_REMEMBERED:
        kept.popitem(last=False)
