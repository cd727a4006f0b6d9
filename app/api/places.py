"""How many callers may do at once what is much work, so that all others are still served."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import Unavailable


class Places:
    """So many callers at once, and a refusal for all others; may be used from any thread."""

    def __init__(self, num_places: int, refusal: str) -> None:
        self._places = threading.BoundedSemaphore(num_places)
        self._refusal = refusal

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A place for the length of the block.

        Raises:
            Unavailable: all are taken.
        """
        if not self._places.acquire(blocking=False):
            raise Unavailable(self._refusal)
        try:
            yield
        finally:
            self._places.release()
