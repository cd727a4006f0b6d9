"""`paceline export perfetto`: a timeline for https://ui.perfetto.dev, from a file or a server."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.exporting.source import (
    LATEST,
    JobOption,
    OptionalTrace,
    Source,
    Token,
    Url,
    WindowOption,
)
from app.cli.files import STANDARD_OUTPUT, printable, written_whole
from app.cli.options import MetaFile
from app.errors import InvalidRequest


def perfetto(
    out: Annotated[Path, typer.Option(help="Where to write.", metavar="FILE.json.gz")],
    trace_file: OptionalTrace = None,
    meta: MetaFile = None,
    url: Url = None,
    token: Token = None,
    job: JobOption = None,
    window: WindowOption = LATEST,
    steps: Annotated[
        str | None, typer.Option(help="Steps, as in 3,5-9; left out: the slowest one.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Workers as dp rank / stage, as in 0/1,3/*.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="The same workers by their global ranks, as in 0,8-11.")
    ] = None,
    runs: Annotated[
        str | None, typer.Option(help="Some of recorded,simulated,ideal; left out: all three.")
    ] = None,
) -> None:
    """Write what each worker did, and would have done, as `paceline timeline` does.

    Example: paceline export perfetto --url http://127.0.0.1:8642 --job llm-70b --out t.json.gz
    """
    from app.cli.exporting.fetched import into
    from app.cli.perfetto import timeline

    source = Source(trace_file, meta, url, token, job, window).checked()
    if source.trace is not None:
        timeline(source.trace, out, meta, steps, workers, ranks, runs)
        return
    if out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a timeline is no text for a terminal: name a file")
    asked = {"steps": steps, "workers": workers, "ranks": ranks, "runs": runs}
    query = {name: value for name, value in asked.items() if value is not None}
    with written_whole(out) as file:
        into(source, source.window_path("/timeline"), query, file)
    typer.echo(f"{printable(str(out))}: open it in https://ui.perfetto.dev", err=True)
