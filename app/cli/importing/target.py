"""What is read and where it goes: checked before the first byte is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.cli.files import STANDARD_OUTPUT
from app.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Target:
    """A file, or a server; neither where the files are only looked at."""

    out: Path | None
    url: str | None
    token: str | None
    job: str | None
    run_key: str | None


def files(named: Sequence[Path] | None) -> tuple[Path, ...]:
    """The files, each once.

    Raises:
        InvalidRequest: none is named, or one twice.
    """
    if not named:
        raise InvalidRequest("no file is named: name all files of one run after the format")
    seen: dict[Path, Path] = {}
    for path in named:
        whole = path.resolve()
        if whole in seen:
            raise InvalidRequest(f"{path}: the same file as {seen[whole]}: name each file once")
        seen[whole] = path
    return tuple(named)


def refuse_for_scores(name: str, given: Mapping[str, object]) -> None:
    """Nothing, unless an option was given that says something of operations.

    Raises:
        InvalidRequest: one was; the message names it.
    """
    for option, value in given.items():
        if value:
            raise InvalidRequest(
                f"{option} is about operations, and {name} has scores of ranks: leave it out"
            )


def refuse_conflicts(target: Target, paths: Sequence[Path], meta: Path | None) -> None:
    """Nothing, if what is written is one thing, and none of what is read.

    Raises:
        InvalidRequest: it is not; the message names the option.
    """
    from app.trace.readers.meta import usual_path

    if target.out and target.url:
        raise InvalidRequest("--out and --url: write a file or push to a server, not both")
    if target.run_key is not None and not target.url:
        raise InvalidRequest("--run-key names a run on a server: give its --url, too")
    if target.out is None:
        return
    if target.out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a trace is no text for a terminal: name a file")
    for written in (target.out, usual_path(target.out)):
        for read in (*paths, *([meta] if meta else [])):
            if written.exists() and read.exists() and written.samefile(read):
                raise InvalidRequest(
                    f"--out {target.out}: {written.name} is what is read: name another file"
                )
