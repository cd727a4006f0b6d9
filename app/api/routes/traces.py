"""Recorded operations of a closed window, as the files that `paceline analyze` takes."""

import zipfile
from collections.abc import Iterator
from io import RawIOBase
from typing import IO, Any, BinaryIO, cast

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response
from typing_extensions import override

from app.api.closed_windows import Key, key_of, load
from app.api.deps import JobKey, Responses, ServiceDep, refusals
from app.api.download import Download
from app.api.fields import WindowId
from app.store import jobs
from app.store.engine import Store
from app.store.registering import Registration
from app.trace.names import plain
from app.trace.readers import meta, published_collectives
from app.trace.readers.published import Writer
from app.trace.window import Window

ZIP = "application/zip"
_ROWS_AT_ONCE = 1 << 17

router = APIRouter(tags=["windows"])

_FILE: Responses = {
    200: {
        "description": "A zip file: trace-NAME.parquet and meta-NAME.yaml, columns and keys as "
        "published traces have them; collectives-NAME.parquet, where ranks recorded what happens "
        "inside their groups.",
        "content": {ZIP: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get(
    "/jobs/{job_id}/windows/{window}/trace",
    operation_id="get_window_trace",
    summary="Download the operations of a window",
    response_class=Response,
    responses={**_FILE, **refusals(404, 409)},
)
def get_window_trace(job_id: JobKey, window: WindowId, service: ServiceDep) -> Response:
    """All operations of the complete steps of a closed window, for as long as they are kept."""
    with service.store.read() as conn:
        key = key_of(conn, job_id, window)
        epoch = int(key.window_id.split("-")[0])
        registration = jobs.run(conn, job_id, epoch)
    name = f"{plain(job_id)}-{key.window_id}"
    return Download(
        _zipped(service.store, key, registration, name),
        service.replays.at_download,
        name=f"{name}.zip",
        media_type=ZIP,
    )


def _zipped(store: Store, key: Key, registration: Registration, name: str) -> Iterator[bytes]:
    """Both files in one, made while it is read; so are the operations, which may be many."""
    window = load(store, key)
    about = meta.text(window.job, run_id=registration.run_key, labels=registration.labels)
    sink = _Sink()
    # Stored, not deflated: parquet is packed already.
    with zipfile.ZipFile(cast(IO[bytes], sink), "w") as archive:
        archive.writestr(f"meta-{name}.yaml", about)
        with archive.open(f"trace-{name}.parquet", "w", force_zip64=True) as file:
            for _ in _written(window, file):
                yield sink.taken()
        # After the trace: earlier versions of the command line take the first parquet file.
        if window.collectives is not None:
            with archive.open(f"collectives-{name}.parquet", "w", force_zip64=True) as file:
                published_collectives.write(window.collectives, cast(BinaryIO, file))
    yield sink.taken()


def _written(window: Window, file: Any) -> Iterator[None]:
    """Writes some rows each time that it is asked to go on."""
    origin_ns = window.origin_ns and dict(zip(window.steps, window.origin_ns, strict=True))
    with Writer(file, window.job) as writer:
        for first in range(0, window.trace.num_ops, _ROWS_AT_ONCE):
            rows = np.arange(first, min(first + _ROWS_AT_ONCE, window.trace.num_ops))
            piece = window.trace.select(rows)
            writer.add(piece, hosts=window.hosts or None, origin_ns=origin_ns or None)
            yield


class _Sink(RawIOBase):
    """Keeps what is written until it is taken; it cannot be wound back."""

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
        """All that was written since the last time."""
        taken, self._kept = b"".join(self._kept), []
        return taken
