"""`paceline export otlp-metrics`: a window's figures for an OpenTelemetry collector."""

import json
import time
from pathlib import Path
from typing import Annotated

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
from app.cli.files import write_json
from app.cli.options import MetaFile
from app.errors import InvalidRequest

_JSON = "application/json"


def otlp_metrics(
    trace_file: OptionalTrace = None,
    meta: MetaFile = None,
    out: Annotated[
        Path | None, typer.Option(help="Write one request in JSON here; - is the terminal.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Send it to this collector, such as http://127.0.0.1:4318."),
    ] = None,
    url: Url = None,
    token: Token = None,
    job: JobOption = None,
    window: WindowOption = LATEST,
    steps: Steps = None,
    workers: Annotated[
        int, typer.Option(min=0, max=1000, help="How many of the slowest workers to name.")
    ] = 10,
) -> None:
    """Give slowdowns, step times and causes to a collector, as OTLP/HTTP gauges.

    Example: paceline export otlp-metrics --url http://127.0.0.1:8642 --job llm-70b
    --endpoint http://127.0.0.1:4318
    """
    from app.cli.console import notes
    from app.cli.exporting.otlp import request_of
    from app.cli.inputs import refuse_to_overwrite

    source = Source(trace_file, meta, url, token, job, window, steps).checked()
    if (out is None) == (endpoint is None):
        raise InvalidRequest("name a file with --out, or a collector with --endpoint: one of them")
    if source.trace is not None:
        refuse_to_overwrite("--out", out, source.trace, meta)
    with notes().status("analysing"):
        request = request_of(source.result(), at_ns=time.time_ns(), worst=workers)
    if out is not None:
        write_json(request, out)
    if endpoint is not None:
        typer.echo(f"sent: {_sent(endpoint, json.dumps(request, allow_nan=False).encode())}")


def _sent(endpoint: str, body: bytes) -> str:
    """What became of it, in words.

    Raises:
        PacelineError: the collector does not take it.
    """
    from app.cli.exporting.server import Server

    with Server(endpoint, None) as collector:
        answer = collector.post("/v1/metrics", body, _JSON)
    try:
        partial = json.loads(answer or b"{}").get("partialSuccess") or {}
        refused, why = int(partial.get("rejectedDataPoints", 0)), str(partial.get("errorMessage"))
    except (ValueError, AttributeError, TypeError, RecursionError):
        refused, why = 0, ""
    if refused:
        raise InvalidRequest(f"the collector refused {refused} points: {' '.join(why.split())}")
    return f"{len(body):,} bytes"
