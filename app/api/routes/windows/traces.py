"""Recorded operations of a closed window, as files for `paceline analyze`."""

import zipfile
from collections.abc import Iterator
from io import RawIOBase
from typing import IO, Any, BinaryIO, cast

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response
from typing_extensions import override

from app.api.http.download import Download
from app.api.http.fields import WindowId
from app.api.routes.dependencies import JobKey, Responses, ServiceDep, refusals
from app.api.service.replays import ReplayCache, WindowKey, window_key
from app.store import jobs
from app.store.runs import Registration
from app.trace.job import job_of
from app.trace.readers.published import collective_files, meta
from app.trace.readers.published.trace_files import TraceWriter
from app.trace.window import Window

ZIP = "application/zip"
_ROWS_PER_CHUNK = 1 << 17

router = APIRouter(tags=["windows"])

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
    operation_id="get_window_trace",
    summary="Download the operations of a window",
    response_class=Response,
    responses={**_TRACE_FILE, **refusals(404, 409)},
)
def get_window_trace(job_id: JobKey, window: WindowId, service: ServiceDep) -> Response:
    """All recorded operations of a closed window's steps, until retention deletes them.

    Those of steps that were not analysed are left out.
    """
    with service.store.read() as conn:
        key = window_key(conn, job_id, window)
        epoch = int(key.window_id.split("-")[0])
        registration = jobs.registration(conn, job_id, epoch)
    name = f"{job_of(job_id)}-{key.window_id}"
    return Download(
        _zipped(service.replays, key, registration, name),
        name=f"{name}.zip",
        media_type=ZIP,
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
        lacking = (each.step for each in window.partial.steps)
        origin_ns |= zip(lacking, window.partial.origin_ns or (), strict=False)
        traces.append(window.partial.trace)
    with TraceWriter(file, window.job) as writer:
        for trace in traces:
            for first in range(0, trace.num_ops, _ROWS_PER_CHUNK):
                rows = np.arange(first, min(first + _ROWS_PER_CHUNK, trace.num_ops))
                piece = trace.select(rows)
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
