"""`paceline export trace` and `export perfetto`: operations of a file or a server's window."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.exporting.source import (
    LATEST,
    ExportSource,
    JobOption,
    OptionalTrace,
    Steps,
    Token,
    Url,
    WindowOption,
)
from app.cli.options import MetaFile
from app.cli.output import STANDARD_OUTPUT, say_written, written_whole
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.trace.readers.importing import ImportSummary, OperationImport, RankRows


def trace(
    out: Annotated[
        Path, typer.Option(help="File to write; the meta file goes beside it.", metavar="FILE")
    ],
    trace_file: OptionalTrace = None,
    meta: MetaFile = None,
    url: Url = None,
    token: Token = None,
    job: JobOption = None,
    window: WindowOption = LATEST,
    steps: Steps = None,
) -> None:
    """Write operations as a published trace: a parquet file and its meta file.

    Example: paceline export trace --url http://127.0.0.1:8642 --job llm-70b --out trace-70b.parquet
    """
    from app.cli.exporting.download import downloaded_trace
    from app.cli.output import refuse_to_overwrite
    from app.trace.readers.published import collective_files
    from app.trace.readers.published.meta import usual_path

    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a trace is binary, so name a file")
    source = ExportSource(trace_file, meta, url, token, job, window, steps).checked()
    with ExitStack() as stack:
        read, about = source.trace, meta
        if read is None:
            read, about = stack.enter_context(downloaded_trace(source))
        else:
            for written in (out, usual_path(out), collective_files.usual_path(out)):
                refuse_to_overwrite("--out", written, read, meta)
        _write_trace(read, about, steps, out)
    say_written(out, f"{_num_operations(out):,} operations")


def _num_operations(out: Path) -> int:
    from pyarrow.parquet import read_metadata

    return int(read_metadata(out).num_rows)


def _write_trace(read: Path, meta: Path | None, steps: str | None, out: Path) -> None:
    from app.cli.importing.destinations import save_trace
    from app.cli.output import written_whole
    from app.cli.trace_input import printable_errors
    from app.trace.readers.importing import ImportOptions
    from app.trace.readers.published import collective_files, published_import
    from app.trace.readers.published.meta import trace_name
    from app.trace.window import parse_step_ranges

    with printable_errors():
        opened = published_import.open_files([read], ImportOptions(meta=meta))
        with closing(opened):
            described = opened.describe()
            named = described.steps.tolist()
            if steps is not None:
                named = parse_step_ranges(steps, named)
                opened = _SelectedSteps(opened, frozenset(named))
                described = opened.describe()
            save_trace(opened, described, described.job(trace_name(read)), out)
            inside = collective_files.beside(read, sorted(named))
    if inside is not None:
        with written_whole(collective_files.usual_path(out)) as file:
            collective_files.write(inside, file)


class _SelectedSteps:
    """An import restricted to some steps."""

    def __init__(self, opened: "OperationImport", steps: frozenset[int]) -> None:
        self._opened = opened
        self._steps = steps

    def describe(self) -> "ImportSummary":
        """The import's description."""
        known = set(self._opened.describe().steps.tolist())
        if missing := self._steps - known:
            raise InvalidRequest(f"step {min(missing)} was not recorded")
        return self._opened.describe()

    def chunks(self) -> "Iterator[RankRows]":
        """Rows of these steps."""
        return (rows for rows in self._opened.chunks() if int(rows.step[0]) in self._steps)

    def close(self) -> None:
        """Remove temporary files."""
        self._opened.close()


def perfetto(
    out: Annotated[Path, typer.Option(help="File to write.", metavar="FILE.json.gz")],
    trace_file: OptionalTrace = None,
    meta: MetaFile = None,
    url: Url = None,
    token: Token = None,
    job: JobOption = None,
    window: WindowOption = LATEST,
    steps: Annotated[
        str | None, typer.Option(help="Steps, as in 3,5-9. Default: the slowest one.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Workers as dp rank / stage, as in 0/1,3/*.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="The same workers by their global ranks, as in 0,8-11.")
    ] = None,
    runs: Annotated[
        str | None, typer.Option(help="Some of recorded,simulated,ideal. Default: all three.")
    ] = None,
) -> None:
    """Write the recorded, simulated and ideal timelines, as `paceline timeline` does.

    Example: paceline export perfetto --url http://127.0.0.1:8642 --job llm-70b --out t.json.gz
    """
    from app.cli.exporting.download import download
    from app.cli.timeline import timeline

    source = ExportSource(trace_file, meta, url, token, job, window).checked()
    if source.trace is not None:
        timeline(source.trace, out, meta, steps, workers, ranks, runs)
        return
    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a timeline is binary, so name a file")
    asked = {"steps": steps, "workers": workers, "ranks": ranks, "runs": runs}
    query = {name: value for name, value in asked.items() if value is not None}
    with written_whole(out) as file:
        download(source, source.window_path("/timeline"), query, file)
    say_written(out, "open it in https://ui.perfetto.dev")
