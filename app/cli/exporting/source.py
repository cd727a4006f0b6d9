"""Where an export reads from: a trace file, or a job's window on a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from app.cli.exporting.http_client import QueryClient
from app.cli.options import token_option
from app.cli.replay import local_token
from app.cli.trace_input import errors_naming, read_trace
from app.errors import InvalidRequest
from app.result.window_result import WindowResult

LATEST = "latest"

OptionalTrace = Annotated[
    Path | None,
    typer.Argument(help="Published parquet trace; or use --url.", metavar="[TRACE.parquet]"),
]
Url = Annotated[str | None, typer.Option(help="Export from this server instead.")]
Token = Annotated[str | None, token_option("Its token, with the scope read")]
JobOption = Annotated[str | None, typer.Option(help="The job on the server.")]
WindowOption = Annotated[
    str, typer.Option(help="Its window: latest, 3-1200, or (results) 3-1200..3-1264.")
]
Steps = Annotated[str | None, typer.Option(help="Only these steps, as in 3,5-9.", metavar="STEPS")]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """The source of an export: a file, or a window of a job on a server."""

    trace: Path | None
    meta: Path | None
    url: str | None
    token: str | None
    job: str | None
    window: str
    steps: str | None = None

    def checked(self) -> "ExportSource":
        """Check that exactly one source is given."""
        if self.url is None:
            if self.trace is None:
                raise InvalidRequest("name a trace file, or a server with --url and --job")
            if self.job is not None:
                raise InvalidRequest("--job is a job on a server: give --url too")
            return self
        if self.trace is not None or self.meta is not None:
            raise InvalidRequest("give a trace file or --url, not both")
        if self.job is None:
            raise InvalidRequest("--url needs --job, the job to export")
        return self

    def server(self) -> QueryClient:
        """A client of the server."""
        return QueryClient(self.url or "", self.token or local_token())

    def result(self) -> WindowResult:
        """The whole result, with figures by step."""
        if self.trace is not None:
            from app.monitor import analysed

            with errors_naming(self.trace, "record the step again, or choose others with --steps"):
                return analysed(read_trace(self.trace, self.meta, self.steps))[1]
        query = {"per_step": "true"} | ({"steps": self.steps} if self.steps else {})
        with self.server() as server:
            return server.decoded(self.window_path(), WindowResult, query)

    def window_path(self, tail: str = "") -> str:
        """The window's path on the server."""
        job, window = quote(self.job or "", safe=""), quote(self.window, safe="")
        return f"/api/v1/jobs/{job}/windows/{window}{tail}"
