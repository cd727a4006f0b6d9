"""The data directory of `paceline serve`, and the small files that it keeps there."""

import os
from collections.abc import Callable
from pathlib import Path

from app.errors import StartUpFailed
from app.variable_names import PREFIX


def kept_text(path: Path, make: Callable[[], str]) -> str:
    """The text in the file, which only its owner can read; made first if there is no file."""
    make_data_dir(path.parent)
    if path.exists():
        return path.read_text().strip()
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    text = make()
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(unfinished, path)  # whole or not at all, and never over another process's
    except FileExistsError:
        return path.read_text().strip()
    finally:
        unfinished.unlink()
    return text


def make_data_dir(directory: Path) -> None:
    """Make the data directory if missing; raises StartUpFailed, which says why it cannot be one."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError):
        file = next(path for path in (directory, *directory.parents) if path.is_file())
        raise StartUpFailed(
            f"{file} is a file, not a directory: choose another directory with --data-dir or "
            f"{PREFIX}DATA_DIR"
        ) from None
    except OSError as error:
        raise StartUpFailed(
            f"the data directory {directory} cannot be made ({error.strerror}): choose another "
            f"with --data-dir or {PREFIX}DATA_DIR"
        ) from None
