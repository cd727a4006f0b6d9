"""Recorded operations of a closed window, as files for `paceline analyze`.

`Download` sends files that are generated while they are sent.
"""

import asyncio
import threading
import zipfile
from collections.abc import Generator, Iterator
from io import RawIOBase
from typing import IO, Any, BinaryIO, cast

import numpy as np
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from app.api.http.connection import abort
from app.api.http.fields import WindowId
from app.api.http.request_log import loggable_path
from app.api.http.work_places import send_part, until_disconnect
from app.api.routes.dependencies import ApiRouter, JobKey, Responses, ServiceDep
from app.api.service.replays import ReplayCache, WindowKey, window_key
from app.store import jobs
from app.store.runs import Registration
from app.trace.job import job_of
from app.trace.readers.published import collective_files, meta
from app.trace.readers.published.trace_files import TraceWriter
from app.trace.window import Window

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
        gone = asyncio.create_task(until_disconnect(receive))
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
                await send_part(send, piece[begin : begin + _CHUNK_BYTES], self._send_within_s)
                if gone.done():
                    return
            piece = await run_in_threadpool(self._pieces.next)
        await send_part(send, b"", self._send_within_s, more=False)


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


ZIP = "application/zip"
_ROWS_PER_CHUNK = 1 << 17

router = ApiRouter("windows")

_TRACE_FILE: Responses = {
    200: {
        "description": "A zip file with trace-NAME.parquet and meta-NAME.yaml in the published "
        "trace format, and collectives-NAME.parquet if ranks recorded "
        "collectives inside their groups.",
        "content": {ZIP: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get(
    "/jobs/{job_id}/windows/{window}/trace",
    summary="Download the operations of a window",
    response_class=Response,
    responses=_TRACE_FILE,
)
def get_window_trace(job_id: JobKey, window: WindowId, service: ServiceDep) -> Response:
    """All recorded operations of a closed window's steps, until retention deletes them.

    Those of steps that were not analysed are left out.
    """
    with service.store.read() as conn:
        key = window_key(conn, job_id, window)
        registration = jobs.registration(conn, job_id, int(key.window_id.split("-")[0]))
    name = f"{job_of(job_id)}-{key.window_id}"
    return Download(
        _zipped(service.replays, key, registration, name), name=f"{name}.zip", media_type=ZIP
    )


def _zipped(
    replays: ReplayCache, key: WindowKey, registration: Registration, name: str
) -> Iterator[bytes]:
    """Both files in one zip, generated while it is read, operations included."""
    window = replays.load(key)
    about = meta.text(window.job, run_id=registration.run_key, labels=registration.labels)
    sink = _Sink()
    # Stored, not deflated: parquet is compressed.
    with zipfile.ZipFile(cast(IO[bytes], sink), "w") as archive:
        archive.writestr(f"meta-{name}.yaml", about)
        with archive.open(f"trace-{name}.parquet", "w", force_zip64=True) as file:
            for _ in _written(window, file):
                yield sink.taken()
        # After the trace: `paceline analyze` takes the first parquet file.
        if window.collectives is not None:
            with archive.open(f"collectives-{name}.parquet", "w", force_zip64=True) as file:
                collective_files.write(window.collectives, cast(BinaryIO, file))
    yield sink.taken()


def _written(window: Window, file: Any) -> Iterator[None]:
    """Writes one batch of rows per iteration; imputed operations are none that were recorded."""
    origin_ns = dict(zip(window.steps, window.origin_ns or (), strict=False))
    traces = [window.trace]
    if window.partial is not None:
        lacking = (skipped.step for skipped in window.partial.steps)
        origin_ns |= zip(lacking, window.partial.origin_ns or (), strict=False)
        traces.append(window.partial.trace)
    with TraceWriter(file, window.job) as writer:
        for trace in traces:
            for first in range(0, trace.num_ops, _ROWS_PER_CHUNK):
                piece = trace.select(np.arange(first, min(first + _ROWS_PER_CHUNK, trace.num_ops)))
                writer.add(piece, hosts=window.hosts or None, origin_ns=origin_ns or None)
                yield


class _Sink(RawIOBase):
    """A write-only file that keeps bytes until `taken`; cannot seek."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, part: Any) -> int:
        self._kept.append(bytes(part))
        return len(self._kept[-1])

    def taken(self) -> bytes:
        """Bytes written since the last call."""
        taken, self._kept = b"".join(self._kept), []
        return taken
