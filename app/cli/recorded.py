"""Traces as commands take them: read, narrowed to some steps, and named in every error."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.files import printable
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.trace.window import Window


def read(trace: Path, meta: Path | None = None, steps: str | None = None) -> "Window":
    """The trace's window, with only the steps that `steps` names where it does.

    Raises:
        InvalidRequest: no step can be analysed, or not one that was named; says which file.
    """
    from app.cli.chosen_steps import only
    from app.trace.readers import published

    with shown_as_they_are():
        window = published.read(trace, meta)
    with errors_about(trace):
        return window if steps is None else only(window, steps)


@contextmanager
def errors_about(trace: Path, advice: str = "") -> Iterator[None]:
    """Refusals from within begin with the trace's name, and end with what to do."""
    with shown_as_they_are():
        try:
            yield
        except InvalidRequest as error:
            told = f"{trace.name}: {error}" + (f": {advice}" if advice else "")
            raise type(error)(told) from error


@contextmanager
def shown_as_they_are() -> Iterator[None]:
    """Names that come from files cannot steer the terminal that shows a refusal."""
    try:
        yield
    except InvalidRequest as error:
        raise type(error)(printable(str(error))) from error
