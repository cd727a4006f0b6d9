"""Commands that run Paceline: all of it, or one process of it."""

import signal
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import AllowLossy, DataDir, Host, Port, Public, TlsCert, TlsKey
from app.errors import StartUpFailed

if TYPE_CHECKING:
    from app.settings import Settings


def serve(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    public: Public = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    allow_lossy: AllowLossy = False,
) -> None:
    """Run everything on this machine: API, consumer, event queue and store, kept in a directory.

    Example: paceline serve --port 8642 --data-dir /var/lib/paceline
    """
    from app.cli.serve import Everything, StopSignal, others_need
    from app.settings import load_settings

    settings = load_settings(
        host=host,
        port=port,
        data_dir=data_dir,
        public=public or None,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_lossy=allow_lossy or None,
    )
    is_new = not _has_token(settings)
    settings = settings.with_token()
    stop = StopSignal()
    with ExitStack() as stack:
        everything = Everything(settings, stop)
        everything.start(stack)
        more = (f"Data:   {settings.data_dir}", *others_need(settings))
        _say_where(settings, is_new, *more)
        everything.keep_running()


def demo(
    host: Host = None,
    port: Port = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep the demo's data here; a passing directory if unset.")
    ] = None,
) -> None:
    """Run everything, with four live made jobs: healthy, slow worker, long stage, uneven lengths.

    Example: paceline demo
    """
    from app.cli.children import Child, end_with_parent, paceline
    from app.cli.live_jobs import demo_jobs
    from app.cli.serve import Everything, StopSignal, page_url
    from app.settings import load_settings

    stop = StopSignal()
    end_with_parent()  # whatever ends make or a script that runs the demo ends the demo
    with ExitStack() as stack:
        directory = data_dir or Path(stack.enter_context(TemporaryDirectory(prefix="paceline-")))
        settings = load_settings(host=host, port=port, data_dir=directory)
        is_new = not _has_token(settings)
        settings = settings.with_token()
        everything = Everything(settings, stop)
        everything.start(stack)
        url = page_url(settings)
        token = {"PACELINE_TOKEN": _token(settings)}
        jobs = Child("jobs", paceline("demo-jobs", "--url", url), token)
        everything.add(jobs, stack)
        to_see = [f"  {url}/jobs/{job.job_id}\n      {job.to_see}" for job in demo_jobs()]
        _say_where(settings, is_new, "What to look at, from about 3 s on:", *to_see)
        everything.keep_running()


def demo_jobs_command(url: Annotated[str, typer.Option()]) -> None:
    """Push the demo's jobs to a server until told to stop (the token comes by PACELINE_TOKEN)."""
    from app.cli.live_jobs import demo_jobs, push
    from app.settings import load_settings

    settings = load_settings()
    stop = _stop_event()
    threads = [
        threading.Thread(target=push, args=(job, url, _token(settings), stop))
        for job in demo_jobs()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def api(
    host: Host = None,
    port: Port = None,
    public: Public = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    allow_lossy: AllowLossy = False,
) -> None:
    """Run the API alone, for production; give it PACELINE_DATABASE_URL and PACELINE_REDIS_URL.

    Example: PACELINE_TOKEN=pl_... paceline api --host 0.0.0.0 --public
    """
    from app import main
    from app.settings import load_settings

    settings = load_settings(
        host=host,
        port=port,
        public=public or None,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_lossy=allow_lossy or None,
    )
    main.run(settings)


def consumer(
    name: Annotated[
        str | None,
        typer.Option(
            help="A name that is this consumer's alone; after a crash it has its jobs back at once."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether queue and store can be used.")
    ] = False,
    allow_lossy: AllowLossy = False,
) -> None:
    """Run a consumer alone, for production; any number of them share the jobs.

    Example: paceline consumer --name consumer-0
    """
    from app.consumer import wiring
    from app.settings import load_settings

    settings = load_settings(allow_lossy=allow_lossy or None)
    if check:
        wiring.check(settings)
    else:
        wiring.run(settings, name or socket.gethostname(), _stop_event())


def _token(settings: "Settings") -> str:
    if settings.token is None:
        raise StartUpFailed("no token: set PACELINE_TOKEN")
    return settings.token.get_secret_value()


def _stop_event() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


def _has_token(settings: "Settings") -> bool:
    return settings.token is not None or settings.token_file.exists()


def _say_where(settings: "Settings", is_new: bool, *more: str) -> None:
    from app.cli.serve import address_lines

    # Plain lines: a frame or a line break in an address cannot be clicked or copied.
    may_tell = is_new or sys.stdout.isatty()
    lines = address_lines(settings, _token(settings), may_tell=may_tell)
    typer.echo("\n".join(["", *lines, "", *more, "", "Ctrl-C stops everything.", ""]))
