"""Downloads traces and timelines from a server."""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from app.cli.exporting.source import ExportSource
from app.errors import InvalidRequest


@contextmanager
def downloaded_trace(source: ExportSource) -> Iterator[tuple[Path, Path]]:
    """Temporary trace and meta files of a window on a server."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        folder = Path(name)
        packed = folder / "window.zip"
        with source.server() as server, _disk_errors(folder), packed.open("wb") as file:
            for piece in _with_progress(server.pieces(source.window_path("/trace"))):
                file.write(piece)
        with _disk_errors(folder):
            found = _unpacked(packed, folder)
        yield found


def _unpacked(packed: Path, folder: Path) -> tuple[Path, Path]:
    from app.trace.readers.published.collective_files import usual_path

    trace, meta = folder / "trace-fetched.parquet", folder / "meta-fetched.yaml"
    try:
        with zipfile.ZipFile(packed) as archive:
            _copy(archive, ".parquet", trace)
            _copy(archive, ".yaml", meta)
            for each in archive.infolist():
                if each.filename.startswith("collectives-"):
                    _take_out(archive, each, usual_path(trace))
    except (zipfile.BadZipFile, EOFError, StopIteration, NotImplementedError) as error:
        raise InvalidRequest("the server's answer is not a complete trace: try again") from error
    return trace, meta


def _copy(archive: zipfile.ZipFile, ending: str, to: Path) -> None:
    """Extract by suffix; names in the archive are not used, as they could point elsewhere."""
    found = next(each for each in archive.infolist() if each.filename.endswith(ending))
    _take_out(archive, found, to)


def _take_out(archive: zipfile.ZipFile, found: zipfile.ZipInfo, to: Path) -> None:
    with archive.open(found) as packed, to.open("wb") as file:
        while piece := packed.read(1 << 20):
            file.write(piece)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"{folder.parent}: cannot store the download ({error.strerror or error}): free some "
            "space, or set TMPDIR to another folder"
        ) from error


def download(source: ExportSource, path: str, query: dict[str, str], file: BinaryIO) -> None:
    """Write the server's answer to a file."""
    with source.server() as server:
        for piece in _with_progress(server.pieces(path, query)):
            file.write(piece)


def _with_progress(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces; a terminal shows how much has come, as the server may be drawing the rest."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeElapsedColumn

    from app.cli.terminal import stderr_console

    columns = ("downloading", BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as progress:
        task = progress.add_task("downloading", total=None)
        for piece in pieces:
            progress.advance(task, len(piece))
            yield piece
