"""What a command reads is never what it writes."""

from pathlib import Path

from app.errors import InvalidRequest


def refuse_to_overwrite(option: str, out: Path | None, *inputs: Path | None) -> None:
    """Nothing, if writing to `out` leaves the inputs alone.

    Raises:
        InvalidRequest: it is one of them; the message names the option.
    """
    if out is None or not out.exists():
        return
    for path in inputs:
        if path is not None and path.exists() and out.samefile(path):
            raise InvalidRequest(f"{option} {out}: that is what is read: name another file")
