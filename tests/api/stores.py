"""Stores that fail when a test wants it."""

from contextlib import contextmanager

from app.errors import StoreUnavailable
from app.store.database import Store


class CountingStore(Store):
    """Counts transactions, and can be down."""

    is_up = True
    num_reads = 0
    num_writes = 0

    @contextmanager
    def read(self):
        self.num_reads += 1
        if not self.is_up:
            raise StoreUnavailable("down")
        with super().read() as conn:
            yield conn

    @contextmanager
    def write(self):
        self.num_writes += 1
        if not self.is_up:
            raise StoreUnavailable("down")
        with super().write() as conn:
            yield conn
