"""`paceline replay`: push a recorded trace over HTTP, as its workers would."""

import math
import re
import time
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from app.cli.options import MetaFile, TraceFile, token_option
from app.cli.terminal import stderr_console
from app.errors import InvalidRequest, StartUpFailed
from app.trace.job import MAX_JOB_CHARS

if TYPE_CHECKING:
    from app.cli.ingest_client import IngestClient
    from app.settings import Settings
    from app.trace.window import Window

_MIN_SPEED = 0.001  # a step of a minute takes a working day
# Characters that the API does not allow in a job id.
_NOT_IN_JOB_ID = re.compile(r"[^A-Za-z0-9._-]+")


def replay(
    trace: TraceFile,
    meta: MetaFile = None,
    speed: Annotated[
        str, typer.Option(help="Speed relative to the recording; max: as fast as possible.")
    ] = "1",
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8642",
    token: Annotated[str | None, token_option("Its token")] = None,
    job: Annotated[
        str | None, typer.Option(help="Id of the job. Default: the trace's name.")
    ] = None,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Leave the job running; do not report its end.")
    ] = False,
) -> None:
    """Push a recorded trace to a running server, step by step, as its workers would.

    Example: paceline replay trace-AR.parquet --meta meta-AR.yaml --speed 10
    """
    from app.cli.ingest_client import IngestClient
    from app.trace.readers.published import trace_files

    times = parse_speed("--speed", speed)
    window = trace_files.read(trace, meta, is_imputed=False)
    server = IngestClient(url, token or local_token(), job or job_id_of(window.job.name))
    _replay(server, window, times)
    if not keep_open:
        server.end()
    typer.echo(server.page)


def _replay(server: "IngestClient", window: "Window", speed: float) -> None:
    from app.cli import pushing
    from app.cli.ingest_client import global_ranks

    timeline = pushing.gapless_timeline(window)
    run_key = f"replay-{time.time_ns()}"
    epoch = server.register(window.job, run_key)
    begin_ns = time.time_ns()
    with (
        pushing.client_warnings() as warnings,
        Progress(console=stderr_console(), transient=True) as progress,
        server.recorders(
            window.job,
            global_ranks(window.job, timeline),
            run_key=run_key,
            epoch=epoch,
            hosts=window.hosts,
            max_ops=timeline.trace.num_ops + len(window.steps),
        ) as recorders,
    ):
        bar = progress.add_task("replaying", total=timeline.trace.num_ops)
        pushing.push(
            timeline,
            recorders,
            begin_ns=begin_ns,
            speed=speed,
            clock=pushing.WallClock(),
            progress=lambda num_ops: progress.advance(bar, num_ops),
            op_types=window.job.op_types,
        )
        pushing.deliver(recorders, warnings)


def parse_speed(option: str, text: str) -> float:
    """Speed relative to the recording; infinite for max."""
    try:
        speed = math.inf if text == "max" else float(text)
    except ValueError:
        speed = math.nan
    if not speed >= _MIN_SPEED:
        raise InvalidRequest(f"{option} {text}: want a number of {_MIN_SPEED} or more, or max")
    return speed


def token_of(settings: "Settings") -> str:
    """The token of a service that runs in this process."""
    if settings.token is None:
        raise StartUpFailed("no token: set PACELINE_TOKEN")
    return settings.token.get_secret_value()


def local_token() -> str:
    """The token in the local data directory."""
    from app.settings import load_settings

    path = load_settings().data_dir / "token"
    try:
        return path.read_text().strip()
    except OSError as error:
        demo = _demo_token_file()
        beside = f" (that of the running demo is in {demo})" if demo else ""
        raise InvalidRequest(
            f"no token in {path}: give --token, or set PACELINE_TOKEN{beside}; on the server, "
            "`paceline token create --scope ingest,read` makes one"
        ) from error


def _demo_token_file() -> Path | None:
    """The token file of the demo that was started last; None if there is none."""
    by_time = []
    for path in Path(gettempdir()).glob("paceline-*/token"):
        with suppress(OSError):
            by_time.append((path.stat().st_mtime, path))
    return max(by_time)[1] if by_time else None


def job_id_of(name: str) -> str:
    """A job id made from a name."""
    job_id = _NOT_IN_JOB_ID.sub("-", name).strip("-._")[:MAX_JOB_CHARS]
    if not job_id:
        raise InvalidRequest(f"no job id can be derived from {name!r}: give one with --job")
    return job_id
