"""Files that a server makes, on this machine."""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from app.cli.exporting.source import Source
from app.errors import InvalidRequest

_MAX_META_BYTES = 1 << 20


@contextmanager
def unpacked(source: Source) -> Iterator[tuple[Path, Path]]:
    """The trace and meta files of a window on a server, for as long as the block lasts.

    Raises:
        PacelineError: the server said no, or what came is no trace.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        folder = Path(name)
        packed = folder / "window.zip"
        with source.server() as server, _room(folder), packed.open("wb") as file:
            for piece in server.pieces(source.window_path("/trace")):
                file.write(piece)
        with _room(folder):
            found = _taken_out(packed, folder)
        yield found


def _taken_out(packed: Path, folder: Path) -> tuple[Path, Path]:
    from app.trace.readers.published_collectives import usual_path

    trace, meta = folder / "trace-fetched.parquet", folder / "meta-fetched.yaml"
    try:
        with zipfile.ZipFile(packed) as archive:
            _copy(archive, ".parquet", trace)
            _copy(archive, ".yaml", meta)
            for each in archive.infolist():
                if each.filename.startswith("collectives-"):
                    _take_out(archive, each, usual_path(trace))
    except (zipfile.BadZipFile, EOFError, StopIteration, NotImplementedError) as error:
        raise InvalidRequest("the server's answer is no whole trace: ask again") from error
    return trace, meta


def _copy(archive: zipfile.ZipFile, ending: str, to: Path) -> None:
    """Of a name in the archive only the ending counts, so it can lead nowhere else."""
    found = next(each for each in archive.infolist() if each.filename.endswith(ending))
    _take_out(archive, found, to)


def _take_out(archive: zipfile.ZipFile, found: zipfile.ZipInfo, to: Path) -> None:
    with archive.open(found) as packed, to.open("wb") as file:
        while piece := packed.read(1 << 20):
            file.write(piece)


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"{folder.parent}: cannot keep what the server sends ({error.strerror or error}): "
            "make room, or set TMPDIR to a folder with more"
        ) from error


def into(source: Source, path: str, query: dict[str, str], file: BinaryIO) -> None:
    """Write what the server answers into a file."""
    with source.server() as server:
        for piece in server.pieces(path, query):
            file.write(piece)
