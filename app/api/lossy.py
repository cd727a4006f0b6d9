"""What could be lost here, for the pages to say: only where that was allowed."""

import asyncio
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from app.api.watch import Shared
from app.errors import Unavailable
from app.ingest.queue import QueueWriter
from app.store.durability import weaknesses
from app.store.engine import Store

KEEP_S = 10.0  # who corrects a setting sees the banner go by this


class Lossy:
    """Sentences about queue and store that may lose something; none where that is refused."""

    def __init__(
        self,
        store: Store,
        writer: QueueWriter,
        *,
        is_allowed: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._writer = writer
        self._is_allowed = is_allowed
        self._known: tuple[str, ...] = ()
        late = Unavailable("queue or store do not answer")
        self._found = Shared(self._ask, keep_s=KEEP_S, late=late, monotonic=monotonic)

    async def sentences(self) -> tuple[str, ...]:
        """What may be lost, and why; while nothing answers, what was known last."""
        if self._is_allowed:
            try:
                self._known = await self._found.get()
            except Unavailable:
                return self._known
        return self._known

    async def _ask(self) -> tuple[str, ...]:
        queue, store = await asyncio.gather(
            self._writer.weaknesses(), run_in_threadpool(weaknesses, self._store)
        )
        return (*queue, *store)
