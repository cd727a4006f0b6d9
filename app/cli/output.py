"""Writes output files atomically, and makes text safe for terminals and spreadsheets.

A file is written beside its target and renamed at the end. A command never overwrites its input.
Control characters are escaped, and spreadsheet formulas quoted.
"""

import errno
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from app.errors import InvalidRequest

STANDARD_OUTPUT = Path("-")


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at `path` if the block succeeds; else nothing changes.

    It is written beside `path` and then renamed, so that no reader sees half of it. A device or a
    pipe (`/dev/stdout`) is written to directly. Of a link, the target is replaced.
    """
    try:
        if _is_special(path):
            with path.open("wb") as file:
                yield file
            return
        with _temporary_file(Path(os.path.realpath(path))) as file:
            yield file
    except OSError as error:
        reason, advice = error.strerror or str(error), "choose a folder that you may write to"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = "free some space, or choose another folder"
        raise InvalidRequest(f"{path}: cannot be written ({reason}): {advice}") from error


def say_written(path: Path, *parts: str) -> None:
    """Say on standard error what was written: the path, these parts, and the file's size.

    On standard error, so that a command whose result goes to standard output is not silent either.
    """
    import typer

    if path == STANDARD_OUTPUT:
        typer.echo(f"wrote {', '.join(parts)} to standard output", err=True)
        return
    size = [] if _is_special(path) else [f"{path.stat().st_size:,} bytes"]
    typer.echo(f"wrote {printable(str(path))} ({', '.join([*parts, *size])})", err=True)


def write_json(content: Any, path: Path) -> None:
    """Write objects, or a record, as one line of JSON; to standard output if the path is -."""
    from msgspec import to_builtins

    text = json.dumps(content, allow_nan=False, default=to_builtins) + "\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    with written_whole(path) as file:
        file.write(text.encode())


def printable(text: str) -> str:
    r"""The text with control characters escaped, as \x1b."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The text with its line breaks, and all other control characters escaped."""
    return "\n".join(map(printable, text.split("\n")))


@contextmanager
def _temporary_file(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, _mode(path))  # noqa: PTH101, a temporary file is private
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _mode(path: Path) -> int:
    """Permissions of the replaced file, or of a new one."""
    with suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def refuse_to_overwrite(
    option: str, out: Path | None, trace: Path, meta: Path | None, *others: Path | None
) -> None:
    """Check that `out` is none of the input files, the trace's own meta file included."""
    from app.trace.readers.published.meta import beside

    if out is None or not out.exists():
        return
    for path in (trace, meta or beside(trace), *others):
        if path is not None and path.exists() and out.samefile(path):
            raise InvalidRequest(f"{option} {out}: this is an input file: name another file")


CellT = TypeVar("CellT")

_FORMULA_STARTS = ("=", "+", "-", "@")


def safe_cell(value: CellT) -> CellT | str:
    """The value; text that looks like a formula gets a leading apostrophe.

    Invisible characters and direction marks are escaped.
    """
    if not isinstance(value, str):
        return value
    text = printable_lines(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
