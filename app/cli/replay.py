"""`paceline replay`: push a recorded trace through HTTP, as its workers would have."""

import math
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import MetaFile, TraceFile
from app.errors import InvalidRequest
from app.trace.names import LONGEST_JOB

if TYPE_CHECKING:
    from app.cli.server import Server
    from app.trace.window import Window

# What the API takes in a route.
_SLOWEST = 0.001  # a step of a minute takes a working day
_NOT_IN_JOB_ID = re.compile(r"[^A-Za-z0-9._-]+")


def replay(
    trace: TraceFile,
    meta: MetaFile = None,
    speed: Annotated[
        str, typer.Option(help="How many times as fast as recorded; max: as fast as it goes.")
    ] = "1",
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8642",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PACELINE_TOKEN", help="Its token; left out: the one in the data directory."
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="Id of the job; left out: the trace's name.")
    ] = None,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Do not tell the server that the job has ended.")
    ] = False,
) -> None:
    """Push a recorded trace to a running server, step after step, as its workers would have.

    Example: paceline replay trace-AR.parquet --meta meta-AR.yaml --speed 10
    """
    from app.cli.server import Server
    from app.trace.readers import published

    times = times_as_fast("--speed", speed)
    window = published.read(trace, meta)
    server = Server(url, token or own_token(), job or job_id_of(window.job.name))
    _replay(server, window, times)
    if not keep_open:
        server.end()
    typer.echo(server.page)


def _replay(server: "Server", window: "Window", speed: float) -> None:
    from rich.progress import Progress

    from app.cli import pushing
    from app.cli.console import notes
    from app.cli.replay_clock import end_to_end
    from app.cli.server import ranks_of

    timeline = end_to_end(window)
    run_key = f"replay-{time.time_ns()}"
    epoch = server.register(window.job, run_key)
    begin_ns = time.time_ns()
    with pushing.Complaints() as complaints, Progress(console=notes(), transient=True) as progress:
        recorders = server.recorders(
            window.job,
            ranks_of(window.job, timeline),
            run_key=run_key,
            epoch=epoch,
            hosts=window.hosts,
            max_ops=timeline.trace.num_ops + len(window.steps),
        )
        bar = progress.add_task("replaying", total=timeline.trace.num_ops)
        try:
            pushing.push(
                timeline,
                recorders,
                begin_ns=begin_ns,
                speed=speed,
                clock=pushing.WallClock(),
                progress=lambda num_ops: progress.advance(bar, num_ops),
                op_types=window.job.op_types,
            )
            pushing.deliver(recorders, complaints.messages)
        finally:
            for recorder in recorders:
                recorder.close(timeout_s=0.0)


def times_as_fast(option: str, text: str) -> float:
    """How many times as fast as recorded; infinite for max.

    Raises:
        InvalidRequest: it is no such number; the message names the option.
    """
    try:
        speed = math.inf if text == "max" else float(text)
    except ValueError:
        speed = math.nan
    if not speed >= _SLOWEST:
        raise InvalidRequest(f"{option} {text}: want a number of {_SLOWEST} or more, or max")
    return speed


def own_token() -> str:
    """The token of the server that keeps its data here.

    Raises:
        InvalidRequest: there is none.
    """
    from app.settings import load_settings

    path = load_settings().data_dir / "token"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise InvalidRequest(
            f"no token in {path}: give --token, or set PACELINE_TOKEN to the server's"
        ) from error


def job_id_of(name: str) -> str:
    """The name as the API takes it in a route.

    Raises:
        InvalidRequest: nothing is left of it.
    """
    job_id = _NOT_IN_JOB_ID.sub("-", name).strip("-._")[:LONGEST_JOB]
    if not job_id:
        raise InvalidRequest(f"no id can be made of the name {name!r}: give one with --job")
    return job_id
