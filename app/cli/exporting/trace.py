"""`paceline export trace`: operations as a published parquet file with its meta file."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.exporting.source import (
    LATEST,
    JobOption,
    OptionalTrace,
    Source,
    Steps,
    Token,
    Url,
    WindowOption,
)
from app.cli.files import STANDARD_OUTPUT, printable
from app.cli.options import MetaFile
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.trace.readers.foreign import Described, Import, RankRows


def trace(
    out: Annotated[
        Path, typer.Option(help="Where to write; the meta file goes beside it.", metavar="FILE")
    ],
    trace_file: OptionalTrace = None,
    meta: MetaFile = None,
    url: Url = None,
    token: Token = None,
    job: JobOption = None,
    window: WindowOption = LATEST,
    steps: Steps = None,
) -> None:
    """Write operations as the parquet and meta files that analysers of published traces take.

    Example: paceline export trace --url http://127.0.0.1:8642 --job llm-70b --out trace-70b.parquet
    """
    from app.cli.exporting.fetched import unpacked
    from app.cli.inputs import refuse_to_overwrite
    from app.trace.readers import published_collectives
    from app.trace.readers.meta import usual_path

    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a trace is no text for a terminal: name a file")
    source = Source(trace_file, meta, url, token, job, window, steps).checked()
    with ExitStack() as stack:
        read, about = source.trace, meta
        if read is None:
            read, about = stack.enter_context(unpacked(source))
        else:
            for written in (out, usual_path(out), published_collectives.usual_path(out)):
                refuse_to_overwrite("--out", written, read, meta)
        _write(read, about, steps, out)
    typer.echo(printable(str(out)))


def _write(read: Path, meta: Path | None, steps: str | None, out: Path) -> None:
    from app.cli.files import written_whole
    from app.cli.importing.saving import save
    from app.cli.recorded import shown_as_they_are
    from app.trace.named_steps import chosen
    from app.trace.readers import published_collectives, published_import
    from app.trace.readers.foreign import Options
    from app.trace.readers.meta import trace_name

    with shown_as_they_are():
        opened = published_import.open_files([read], Options(meta=meta))
        with closing(opened):
            described = opened.describe()
            named = described.steps.tolist()
            if steps is not None:
                named = chosen(steps, named)
                opened = _OfSteps(opened, frozenset(named))
                described = opened.describe()
            save(opened, described, described.job(trace_name(read)), out)
            inside = published_collectives.beside(read, sorted(named))
    if inside is not None:
        with written_whole(published_collectives.usual_path(out)) as file:
            published_collectives.write(inside, file)


class _OfSteps:
    """An import, with some of its steps alone."""

    def __init__(self, opened: "Import", steps: frozenset[int]) -> None:
        self._opened = opened
        self._steps = steps

    def describe(self) -> "Described":
        """What is in these steps.

        Raises:
            InvalidRequest: one of them was not recorded.
        """
        known = set(self._opened.describe().steps.tolist())
        if missing := self._steps - known:
            raise InvalidRequest(f"step {min(missing)} was not recorded")
        return self._opened.describe()

    def chunks(self) -> "Iterator[RankRows]":
        """Their rows."""
        return (rows for rows in self._opened.chunks() if int(rows.step[0]) in self._steps)

    def close(self) -> None:
        """Give back what was kept on disk."""
        self._opened.close()
