"""Where an export reads from: a trace file, or a job's window on a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.cli.exporting.server import Server

LATEST = "latest"

OptionalTrace = Annotated[
    Path | None,
    typer.Argument(help="Published parquet trace; left out with --url.", metavar="[TRACE.parquet]"),
]
Url = Annotated[str | None, typer.Option(help="Ask this server instead.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_TOKEN",
        help="Its token, with the scope read; left out: the one in the data directory.",
    ),
]
JobOption = Annotated[str | None, typer.Option(help="The job on the server.")]
WindowOption = Annotated[
    str, typer.Option(help="Its window: latest, 3-1200, or (results) 3-1200..3-1264.")
]
Steps = Annotated[str | None, typer.Option(help="Only these: 3,5-9.", metavar="STEPS")]


@dataclass(frozen=True, slots=True)
class Source:
    """What the caller named: a file, or a window of a job on a server."""

    trace: Path | None
    meta: Path | None
    url: str | None
    token: str | None
    job: str | None
    window: str
    steps: str | None = None

    def checked(self) -> "Source":
        """The same, if it is one thing.

        Raises:
            InvalidRequest: it is none, or two; the message names the option.
        """
        if self.url is None:
            if self.trace is None:
                raise InvalidRequest("name a trace file, or a server with --url and --job")
            if self.job is not None:
                raise InvalidRequest("--job names a job on a server: give its --url, too")
            return self
        if self.trace is not None or self.meta is not None:
            raise InvalidRequest("a trace file and --url: export from one of them")
        if self.job is None:
            raise InvalidRequest("--url needs --job, the job to export")
        return self

    def server(self) -> "Server":
        """The server that was named.

        Raises:
            InvalidRequest: no token was given, and none is in the data directory.
        """
        from app.cli.exporting.server import Server
        from app.cli.replay import own_token

        return Server(self.url or "", self.token or own_token())

    def result(self) -> dict[str, Any]:
        """All that was found, with the figures by step.

        Raises:
            PacelineError: the trace cannot be analysed, or the server said no.
        """
        self.checked()
        if self.url is None:
            return self._analysed()
        query = {"per_step": "true"} | ({"steps": self.steps} if self.steps else {})
        with self.server() as server:
            return server.json(self.window_path(), query)

    def window_path(self, tail: str = "") -> str:
        """The window's path on the server."""
        from urllib.parse import quote

        job, window = quote(self.job or "", safe=""), quote(self.window, safe="")
        return f"/api/v1/jobs/{job}/windows/{window}{tail}"

    def _analysed(self) -> dict[str, Any]:
        from app.cli.recorded import errors_about, read
        from app.diagnosis.history import History
        from app.monitor import analysed

        trace = self.trace
        assert trace is not None  # noqa: S101, `checked`
        with errors_about(trace, "record the step again, or choose others with --steps"):
            return analysed(read(trace, self.meta, self.steps), History())[1]
