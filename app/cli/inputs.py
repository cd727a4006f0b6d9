"""What a command reads is never what it writes."""

from pathlib import Path

from app.errors import InvalidRequest


def refuse_to_overwrite(
    option: str, out: Path | None, trace: Path, meta: Path | None, *others: Path | None
) -> None:
    """Nothing, if writing to `out` leaves alone what is read.

    Where no meta file is named, the one that belongs to the trace is read.

    Raises:
        InvalidRequest: it is one of them; the message names the option.
    """
    from app.trace.readers.meta import beside

    if out is None or not out.exists():
        return
    for path in (trace, meta or beside(trace), *others):
        if path is not None and path.exists() and out.samefile(path):
            raise InvalidRequest(f"{option} {out}: that is what is read: name another file")
