"""Two cache primitives over cachetools: values computed by threads, and shared asyncio lookups.

cachetools has no locks and computes nothing once for concurrent callers; these classes add that.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from cachetools import LRUCache
from starlette.concurrency import run_in_threadpool

from app.errors import StoreUnavailable
from app.store.database import Connection, Store
from app.work_budget import hold, within

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Entry(NamedTuple, Generic[V]):
    value: V
    until_s: float


class ComputeCache(Generic[K, V]):
    """Thread-safe LRU cache of expensive values: one computation per key for concurrent callers.

    With `ttl_per_compute_s`, a value expires after that many times its compute time. With
    `idle_s`, values that nobody asked for in that time are removed at the next use of the cache:
    where keys have revisions, the older ones never come again. The newest value stays, even if it
    is larger than `max_size`.
    """

    def __init__(
        self,
        *,
        max_size: int,
        size_of: Callable[[V], int] = lambda _: 1,
        ttl_per_compute_s: float | None = None,
        idle_s: float = float("inf"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle_s = idle_s
        self._used_s: OrderedDict[K, float] = OrderedDict()  # the longest unused first
        self._ttl_per_compute_s = ttl_per_compute_s
        self._monotonic = monotonic
        self._entries: LRUCache[K, _Entry[V]] = LRUCache(
            max_size, getsizeof=lambda entry: min(size_of(entry.value), max_size)
        )
        self._lock = threading.Lock()
        # One per key that is computed now: it goes with the last thread that holds it.
        self._computing: WeakValueDictionary[K, threading.Lock] = WeakValueDictionary()

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """The cached value; computed first if there is none."""
        entry = self._fresh(key)
        if entry is None:
            with self._lock:
                turn = self._computing.setdefault(key, threading.Lock())
            with hold(turn):
                # A caller that waited for the lock gets the value of the previous holder.
                entry = self._fresh(key) or self._compute(key, compute)
        return entry.value

    def __len__(self) -> int:
        return len(self._entries)

    def _fresh(self, key: K) -> _Entry[V] | None:
        now_s = self._monotonic()
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._note_use(key, now_s)
        return entry if entry is not None and now_s < entry.until_s else None

    def _note_use(self, key: K, now_s: float) -> None:
        """Note the use of a key, and remove idle entries; call with the lock held."""
        self._used_s[key] = now_s
        self._used_s.move_to_end(key)
        while now_s - next(iter(self._used_s.values())) > self._idle_s:
            self._entries.pop(self._used_s.popitem(last=False)[0], None)

    def _compute(self, key: K, compute: Callable[[], V]) -> _Entry[V]:
        begin_s = self._monotonic()
        value = compute()
        until_s = float("inf")
        if self._ttl_per_compute_s is not None:
            end_s = self._monotonic()
            until_s = end_s + self._ttl_per_compute_s * (end_s - begin_s)
        entry = _Entry(value, until_s)
        with self._lock:
            self._entries[key] = entry
            self._note_use(key, self._monotonic())
            if len(self._used_s) > 2 * len(self._entries):  # evicted for their size
                used = self._used_s.items()
                self._used_s = OrderedDict(pair for pair in used if pair[0] in self._entries)
        return entry


# A query of a database that hangs takes seconds: one a second is enough to notice its return.
RETRY_STORE_S = 1.0


class _Lookup(NamedTuple, Generic[V]):
    task: asyncio.Task[V]
    until_s: float


def store_lookup(store: Store, read: Callable[[Connection, K], V]) -> Callable[[K], Awaitable[V]]:
    """A lookup that reads the store in a thread, for a `LookupCache`."""

    def read_now(key: K) -> V:
        with store.read() as conn:
            return read(conn, key)

    async def look_up(key: K) -> V:
        return await run_in_threadpool(read_now, key)

    return look_up


class LookupCache(Generic[K, V]):
    """One asyncio lookup per key for all callers within `fresh_s` of its start, or until it ends.

    While the store is unavailable, the last good value is returned for up to `stale_s`. Values
    that `keep_if` rejects are returned and not cached; errors are cached with `keep_errors` only.
    """

    def __init__(
        self,
        read: Callable[[K], Awaitable[V]],
        *,
        fresh_s: float,
        monotonic: Callable[[], float],
        stale_s: float = 0.0,
        max_keys: int = 10_000,
        keep_if: Callable[[V], bool] = lambda _: True,
        keep_errors: bool = False,
    ) -> None:
        self._read = read
        self._fresh_s = fresh_s
        self._stale_s = stale_s
        self._monotonic = monotonic
        self._keep_if = keep_if
        self._keep_errors = keep_errors
        self._lookups: LRUCache[K, _Lookup[V]] = LRUCache(max_keys)
        self._last_good: LRUCache[K, _Entry[V]] = LRUCache(max_keys)
        self._away_until_s = float("-inf")
        self._lock = threading.Lock()  # around both caches: `forget` may come from any thread

    async def get(self, key: K) -> V:
        """The value; raises what `read` raises, unless the store is away and a value is known."""
        now_s = self._monotonic()
        if now_s < self._away_until_s and (known := self._known(key, now_s)) is not None:
            return known.value
        with self._lock:
            lookup = self._lookups.get(key)
        if lookup is None or (lookup.until_s <= now_s and lookup.task.done()):
            lookup = self._begin(key)
        try:
            # Shielded: one caller that hangs up must not cancel the others' lookup.
            return await asyncio.shield(lookup.task)
        except StoreUnavailable:
            if (known := self._known(key, self._monotonic())) is None:
                raise
            return known.value

    async def get_now(self, key: K) -> V:
        """The value of a new lookup, never a stale one; raises what `read` raises."""
        return await asyncio.shield(self._begin(key).task)

    def fresh_until_s(self, key: K) -> float:
        """Monotonic time until which the value need not be looked up again; 0 if unknown."""
        with self._lock:
            lookup = self._lookups.get(key)
        return 0.0 if lookup is None else lookup.until_s

    def is_away(self) -> bool:
        """Whether the store was unavailable within the last `RETRY_STORE_S`."""
        return self._monotonic() < self._away_until_s

    def forget(self, key: K) -> None:
        """Look the key up next time; may be called from any thread."""
        with self._lock:
            self._lookups.pop(key, None)
            self._last_good.pop(key, None)

    def _known(self, key: K, now_s: float) -> _Entry[V] | None:
        with self._lock:
            entry = self._last_good.get(key)
        return entry if entry is not None and now_s < entry.until_s else None

    def _begin(self, key: K) -> _Lookup[V]:
        with within(None):  # the lookup is for all callers: it does not end with the first one
            task = asyncio.ensure_future(self._read(key))
        lookup = _Lookup(task, self._monotonic() + self._fresh_s)
        with self._lock:
            self._lookups[key] = lookup
        # Also retrieves the error where no caller is left to receive it.
        task.add_done_callback(partial(self._finish, key))
        return lookup

    def _finish(self, key: K, task: asyncio.Task[V]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        is_good = error is None and self._keep_if(task.result())
        if isinstance(error, StoreUnavailable):
            self._away_until_s = self._monotonic() + RETRY_STORE_S
        elif error is None:
            self._away_until_s = float("-inf")
        with self._lock:
            lookup = self._lookups.get(key)
            is_current = lookup is not None and lookup.task is task
            if is_current and not is_good and not (error is not None and self._keep_errors):
                del self._lookups[key]
            elif is_current and is_good and self._stale_s:
                self._last_good[key] = _Entry(task.result(), self._monotonic() + self._stale_s)
