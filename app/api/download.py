"""A file that is made while it is sent, for as long as somebody reads it."""

import asyncio
import threading
from collections.abc import Generator, Iterator

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.api.connection import abort
from app.api.places import Places

log = structlog.get_logger()

# Nobody reads 64 KiB for that long who still reads.
SEND_WITHIN_S = 30.0
# The largest file (35 MB) at half a megabit a second: a slower reader keeps others out.
WHOLE_WITHIN_S = 600.0
_SENT_BYTES = 1 << 16


class Download(Response):
    """All pieces as a file to keep; they are made in threads, in one of the `places`.

    The place is free again when this answer ends, however it ends: sent, failed, or given up
    because its reader hung up or was too slow. Whatever making the first piece raises is raised
    before anything is sent.
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        places: Places,
        *,
        name: str,
        media_type: str,
        send_within_s: float = SEND_WITHIN_S,
        whole_within_s: float = WHOLE_WITHIN_S,
    ) -> None:
        kept = {"Content-Disposition": f'attachment; filename="{name}"'}
        super().__init__(headers=kept, media_type=media_type)
        del self.headers["content-length"]
        self._pieces = _Pieces(pieces)
        self._places = places
        self._send_within_s = send_within_s
        self._whole_within_s = whole_within_s

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._places.taken():
            gone = asyncio.create_task(_until_gone(receive))
            try:
                async with asyncio.timeout(self._whole_within_s):
                    await self._send_all(send, gone)
            except TimeoutError:
                log.warning("download given up: its reader is too slow", path=scope["path"])
                if abort(scope):
                    await gone
            finally:
                gone.cancel()
                # Whoever cancels this answer must not leave the generator half way.
                await asyncio.shield(run_in_threadpool(self._pieces.close))

    async def _send_all(self, send: Send, gone: asyncio.Task[None]) -> None:
        piece = await run_in_threadpool(self._pieces.next)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while piece is not None:
            for begin in range(0, len(piece), _SENT_BYTES):
                await self._send_part(send, piece[begin : begin + _SENT_BYTES])
                if gone.done():
                    return
            piece = await run_in_threadpool(self._pieces.next)
        await self._send_part(send, b"", more=False)

    async def _send_part(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._send_within_s):
            await send({"type": "http.response.body", "body": body, "more_body": more})


class _Pieces:
    """An iterator that one thread at a time is inside, and that can be ended like a generator."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._made = _closable(pieces)
        self._turn = threading.Lock()

    def next(self) -> bytes | None:
        """The next piece; None after the last one."""
        with self._turn:
            return next(self._made, None)

    def close(self) -> None:
        """End it, once the thread inside has come out."""
        with self._turn:
            self._made.close()


def _closable(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield from pieces


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
