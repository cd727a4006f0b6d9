"""Plain torch.profiler files on the command line: recognised by what they hold, and analysed."""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.errors import InvalidRequest

_PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_JSON = (b"{", b"[")
_BLANK = b" \t\r\n\xef\xbb\xbf"


def are_profiles(paths: Sequence[Path]) -> bool:
    """Whether these are JSON files rather than one parquet trace.

    Raises:
        InvalidRequest: there are several files, and a parquet trace among them.
    """
    are_parquet = [_first_bytes(path)[:4] == _PARQUET for path in paths]
    if len(paths) == 1:
        path = paths[0]
        name = path.name.lower()
        looks = (
            name.endswith((".json", ".json.gz")) or _first_bytes(path).lstrip(_BLANK)[:1] in _JSON
        )
        return looks and not are_parquet[0]
    if any(are_parquet):
        name = paths[are_parquet.index(True)].name
        raise InvalidRequest(
            f"{name}: is a parquet trace: name one such trace alone, or torch.profiler files only"
        )
    return True


def _first_bytes(path: Path) -> bytes:
    """The first bytes, unpacked; nothing where the file cannot be read."""
    try:
        with path.open("rb") as file:
            first = file.peek(2)[:2]
            if first == _GZIP:
                with gzip.open(file) as packed:
                    return packed.read(64)
            return file.read(64)
    except (OSError, EOFError, zlib.error, ValueError):
        return b""


def analyse(paths: Sequence[Path], steps: str | None) -> dict[str, Any]:
    """The result of some ranks' profiles.

    Raises:
        InvalidRequest: none of the files can be analysed.
    """
    from app.cli.recorded import shown_as_they_are
    from app.diagnosis.profiles import job, result

    with shown_as_they_are():
        return result.as_json(job.read(paths, steps))
