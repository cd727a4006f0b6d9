"""Files that a command writes whole or not at all, and names as a terminal can show them."""

import errno
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from app.errors import InvalidRequest

STANDARD_OUTPUT = Path("-")


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A binary file that stands at `path` once the block has ended well; else nothing changes.

    It is written beside `path` and then takes its place, so that nobody ever reads half of it. A
    device or a pipe (`/dev/stdout`) cannot be replaced and is written to as it is. A link stays
    one: what it points to is replaced.

    Raises:
        InvalidRequest: the file cannot be written; the message names it.
    """
    try:
        if _is_special(path):
            with path.open("wb") as file:
                yield file
            return
        with _beside(Path(os.path.realpath(path))) as file:
            yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(f"{path}: cannot be written ({reason}): {_advice(error)}") from error


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room there, or name a file elsewhere"
    return "name a file in a folder that you may write to"


def write_json(content: Any, path: Path) -> None:
    """Write something as one line of JSON; to standard output if the path is -."""
    text = json.dumps(content, allow_nan=False) + "\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    with written_whole(path) as file:
        file.write(text.encode())


def printable(text: str) -> str:
    r"""The text with whatever a terminal would obey instead of showing written out, as \x1b."""
    return "".join(each if each.isprintable() else _written_out(each) for each in text)


@contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, _mode(path))  # noqa: PTH101, a temporary is the owner's alone
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
    """Permissions of the file that is replaced, or those of a new one."""
    with suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
