"""`paceline export trace` and `export perfetto`: operations of a file or a server's window."""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeElapsedColumn

from app.cli.exporting import source
from app.cli.options import MetaFile
from app.cli.output import STANDARD_OUTPUT, refuse_to_overwrite, say_written, written_whole
from app.cli.terminal import stderr_console
from app.cli.timeline import ChosenSteps, Runs, timeline
from app.cli.trace_input import printable_errors
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.trace.readers.importing import ImportSummary, OperationImport, RankRows


def trace(
    out: Annotated[
        Path, typer.Option(help="File to write; the meta file goes beside it.", metavar="FILE")
    ],
    trace_file: source.OptionalTrace = None,
    meta: MetaFile = None,
    url: source.Url = None,
    token: source.Token = None,
    job: source.JobOption = None,
    window: source.WindowOption = source.LATEST,
    steps: source.Steps = None,
) -> None:
    """Write operations as a published trace: a parquet file and its meta file.

    Example: paceline export trace --url http://127.0.0.1:8642 --job llm-70b --out trace-70b.parquet
    """
    from pyarrow.parquet import read_metadata

    from app.trace.readers.published import collective_files
    from app.trace.readers.published.meta import usual_path

    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a trace is binary, so name a file")
    asked = source.ExportSource(trace_file, meta, url, token, job, window, steps).checked()
    with ExitStack() as stack:
        read, about = asked.trace, meta
        if read is None:
            read, about = stack.enter_context(_downloaded_trace(asked))
        else:
            for written in (out, usual_path(out), collective_files.usual_path(out)):
                refuse_to_overwrite("--out", written, read, meta)
        _write_trace(read, about, steps, out)
    say_written(out, f"{read_metadata(out).num_rows:,} operations")


def _write_trace(read: Path, meta: Path | None, steps: str | None, out: Path) -> None:
    from app.cli.importing.destinations import save_trace
    from app.trace.readers.importing import ImportOptions, OperationImport
    from app.trace.readers.published import collective_files
    from app.trace.readers.published.meta import trace_name
    from app.trace.readers.published.trace_files import PublishedImport
    from app.trace.window import parse_step_ranges

    with printable_errors():
        opened: OperationImport = PublishedImport([read], ImportOptions(meta=meta))
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


@dataclass(frozen=True, slots=True)
class _SelectedSteps:
    """An import restricted to some steps."""

    opened: "OperationImport"
    steps: frozenset[int]

    def describe(self) -> "ImportSummary":
        """The import's description."""
        described = self.opened.describe()
        if missing := self.steps - set(described.steps.tolist()):
            raise InvalidRequest(f"step {min(missing)} was not recorded")
        return described

    def chunks(self) -> "Iterator[RankRows]":
        """Rows of these steps."""
        return (rows for rows in self.opened.chunks() if int(rows.step[0]) in self.steps)

    def close(self) -> None:
        """Remove temporary files."""
        self.opened.close()


def perfetto(
    out: Annotated[Path, typer.Option(help="File to write.", metavar="FILE.json.gz")],
    trace_file: source.OptionalTrace = None,
    meta: MetaFile = None,
    url: source.Url = None,
    token: source.Token = None,
    job: source.JobOption = None,
    window: source.WindowOption = source.LATEST,
    steps: ChosenSteps = None,
    workers: Annotated[
        str | None, typer.Option(help="Workers as dp rank / stage, as in 0/1,3/*.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="The same workers by their global ranks, as in 0,8-11.")
    ] = None,
    runs: Runs = None,
) -> None:
    """Write the recorded, simulated and ideal timelines, as `paceline timeline` does.

    Example: paceline export perfetto --url http://127.0.0.1:8642 --job llm-70b --out t.json.gz
    """
    asked = source.ExportSource(trace_file, meta, url, token, job, window).checked()
    if asked.trace is not None:
        timeline(asked.trace, out, meta, steps, workers, ranks, runs)
        return
    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a timeline is binary, so name a file")
    given = {"steps": steps, "workers": workers, "ranks": ranks, "runs": runs}
    query = {name: value for name, value in given.items() if value is not None}
    with written_whole(out) as file:
        _download(asked, asked.window_path("/timeline"), query, file)
    say_written(out, "open it in https://ui.perfetto.dev")


@contextmanager
def _downloaded_trace(asked: source.ExportSource) -> Iterator[tuple[Path, Path]]:
    """Temporary trace and meta files of a window on a server."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as name:
        folder = Path(name)
        packed = folder / "window.zip"
        with _disk_errors(folder), packed.open("wb") as file:
            _download(asked, asked.window_path("/trace"), {}, file)
        with _disk_errors(folder):
            files = _unpacked(packed, folder)
        yield files


def _unpacked(packed: Path, folder: Path) -> tuple[Path, Path]:
    from app.trace.readers.published.collective_files import usual_path

    trace, meta = folder / "trace-fetched.parquet", folder / "meta-fetched.yaml"
    try:
        with zipfile.ZipFile(packed) as archive:
            # Names in the archive are not used, as they could point elsewhere.
            names = archive.namelist()
            parts = [
                (next(name for name in names if name.endswith(".parquet")), trace),
                (next(name for name in names if name.endswith(".yaml")), meta),
                *((name, usual_path(trace)) for name in names if name.startswith("collectives-")),
            ]
            for name, path in parts:
                with archive.open(name) as member, path.open("wb") as file:
                    copyfileobj(member, file, 1 << 20)
    except (zipfile.BadZipFile, EOFError, StopIteration, NotImplementedError) as error:
        raise InvalidRequest("the server's answer is not a complete trace: try again") from error
    return trace, meta


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"{folder.parent}: cannot store the download ({error.strerror or error}): free some "
            "space, or set TMPDIR to another folder"
        ) from error


def _download(asked: source.ExportSource, path: str, query: dict[str, str], file: BinaryIO) -> None:
    """Write the server's answer to a file.

    A terminal shows how much has come, as the server may be drawing the rest.
    """
    columns = ("downloading", BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with (
        asked.server() as server,
        Progress(*columns, console=stderr_console(), transient=True) as progress,
    ):
        task = progress.add_task("downloading", total=None)
        for piece in server.pieces(path, query):
            progress.advance(task, len(piece))
            file.write(piece)
