"""Downloads: files that are generated while they are sent."""

import asyncio
import threading
from collections.abc import Generator, Iterator

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.api.http.connection import abort
from app.api.http.request_log import loggable_path

log = structlog.get_logger()

# A live reader takes 64 KiB within this time.
MAX_PIECE_S = 30.0
# The largest file (35 MB) at 0.5 Mbit/s: slower readers would block others.
MAX_DOWNLOAD_S = 600.0
_CHUNK_BYTES = 1 << 16


class Download(Response):
    """Sends pieces as a file; threads generate them.

    It ends when it is sent, fails, or is aborted because its reader disconnected or was too slow:
    then its place of the kind `DOWNLOAD` is free again. Errors of the first piece are raised before
    anything is sent.
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        *,
        name: str,
        media_type: str,
        send_within_s: float = MAX_PIECE_S,
        whole_within_s: float = MAX_DOWNLOAD_S,
    ) -> None:
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._pieces = _Pieces(pieces)
        self._send_within_s = send_within_s
        self._whole_within_s = whole_within_s

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_until_disconnect(receive))
        try:
            async with asyncio.timeout(self._whole_within_s):
                await self._send_all(send, gone)
        except TimeoutError:
            path = loggable_path(scope["path"])
            log.warning("download given up: its reader is too slow", path=path)
            if abort(scope):
                await gone
        finally:
            gone.cancel()
            # A cancelled answer must not leave the generator suspended.
            await asyncio.shield(run_in_threadpool(self._pieces.close))

    async def _send_all(self, send: Send, gone: asyncio.Task[None]) -> None:
        piece = await run_in_threadpool(self._pieces.next)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while piece is not None:
            for begin in range(0, len(piece), _CHUNK_BYTES):
                await self._send_part(send, piece[begin : begin + _CHUNK_BYTES])
                if gone.done():
                    return
            piece = await run_in_threadpool(self._pieces.next)
        await self._send_part(send, b"", more=False)

    async def _send_part(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._send_within_s):
            await send({"type": "http.response.body", "body": body, "more_body": more})


class _Pieces:
    """An iterator for one thread at a time, which can be closed like a generator."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._made = _closable(pieces)
        self._turn = threading.Lock()

    def next(self) -> bytes | None:
        """The next piece; None after the last one."""
        with self._turn:
            return next(self._made, None)

    def close(self) -> None:
        """Close it, after the thread inside has left."""
        with self._turn:
            self._made.close()


def _closable(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield from pieces


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
