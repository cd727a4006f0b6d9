"""`paceline analyze`: how slow is a recorded job, offline."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from app.errors import InvalidRequest

STANDARD_OUTPUT = Path("-")


def analyze(
    trace: Annotated[
        Path, typer.Argument(help="Published parquet trace.", metavar="TRACE.parquet")
    ],
    meta: Annotated[
        Path | None,
        typer.Option(help="Its meta file; left out: meta-NAME.yaml beside trace-NAME.parquet."),
    ] = None,
    json_out: Annotated[
        Path | None,
        typer.Option("--json", help="Write the whole result here; - for standard output only."),
    ] = None,
) -> None:
    """Say how slow a recorded job is, and which workers, stages and operations make it so.

    Example: paceline analyze trace-AR.parquet --json -
    """
    from app.cli.console import notes
    from app.trace.readers.meta import beside

    with notes().status("analysing"):
        result = _result(trace, meta)
    if meta is None and beside(trace) is None:
        typer.echo(f"No meta file for {trace.name}: sizes are those seen, tp_size is 1.", err=True)
    if json_out is not None:
        _write_json(result, json_out)
    if json_out != STANDARD_OUTPUT:
        _show(result)


def _result(trace: Path, meta: Path | None) -> dict[str, Any]:
    from app.engine.report import analyse
    from app.engine.result import as_json
    from app.trace.readers import published

    return as_json(analyse(published.read(trace, meta)))


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console

    from app.cli import screen

    Console().print(screen.summary(result))


def _write_json(result: dict[str, Any], path: Path) -> None:
    text = json.dumps(result, allow_nan=False) + "\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be written ({error.strerror})") from error
