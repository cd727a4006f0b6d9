"""One lock per key, there for as long as somebody holds it or waits for it."""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class _Held:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_users = 0


class KeyLocks:
    """Locks by key; may be used from any thread."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}
        self._guard = threading.Lock()

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of this key for the length of the block."""
        with self._guard:
            held = self._held.setdefault(key, _Held())
            held.num_users += 1
        try:
            with held.lock:
                yield
        finally:
            with self._guard:
                held.num_users -= 1
                if not held.num_users:
                    del self._held[key]

    def __len__(self) -> int:
        return len(self._held)
