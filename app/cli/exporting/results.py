"""`paceline export results`: figures and findings as CSV or Parquet."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from app import formatting
from app.cli.exporting import source
from app.cli.exporting.tables import TABLES, WRITERS, count_rows
from app.cli.options import MetaFile
from app.cli.output import STANDARD_OUTPUT, refuse_to_overwrite, say_written, written_whole
from app.cli.terminal import stderr_console
from app.errors import InvalidRequest
from app.result.window_result import WindowResult


def results(
    out: Annotated[
        Path,
        typer.Option(help="A folder for all tables, or with --table a file; - is standard output."),
    ],
    trace_file: source.OptionalTrace = None,
    meta: MetaFile = None,
    url: source.Url = None,
    token: source.Token = None,
    job: source.JobOption = None,
    window: source.WindowOption = source.LATEST,
    steps: source.Steps = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="One table: summary, steps, workers, dp-ranks, stages, op-types, worker-steps, "
            "findings or skipped-steps."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="csv or parquet. Default: by the file's name, or csv."),
    ] = None,
) -> None:
    """Write slowdowns, step times and findings as tables.

    Example: paceline export results trace-AR.parquet --table workers --out workers.parquet
    """
    asked = source.ExportSource(trace_file, meta, url, token, job, window, steps).checked()
    if table is not None and table not in TABLES:
        raise InvalidRequest(f"--table {table[:40]!r}: name one of {', '.join(TABLES)}")
    is_parquet = table is not None and out.suffix == ".parquet"
    chosen = form or ("parquet" if is_parquet else "csv")
    if chosen not in WRITERS:
        raise InvalidRequest(f"--format {chosen[:40]!r}: name one of {', '.join(WRITERS)}")
    if asked.trace is not None and table is not None:
        refuse_to_overwrite("--out", out, asked.trace, meta)
    with stderr_console().status("analysing"):
        result = asked.result()
    if table is not None:
        _write_one(table, result, out, chosen)
    else:
        _write_all(result, out, chosen)


def _write_one(table: str, result: WindowResult, out: Path, form: str) -> None:
    if out != STANDARD_OUTPUT:
        with written_whole(out) as file:
            WRITERS[form](table, result, file)
    elif form != "csv":
        raise InvalidRequest("--out -: parquet is binary, so name a file")
    else:
        WRITERS[form](table, result, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    say_written(out, f"table {table}", formatting.plural(count_rows(table, result), "row"))


def _write_all(result: WindowResult, out: Path, form: str) -> None:
    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: only one table fits, so choose it with --table")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"{out}: cannot be created ({error.strerror}): choose a folder that you may write to"
        ) from error
    for table in TABLES:
        path = out / f"{table}.{form}"
        with written_whole(path) as file:
            WRITERS[form](table, result, file)
        say_written(path, formatting.plural(count_rows(table, result), "row"))
