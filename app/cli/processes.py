"""Commands that run Paceline: everything, or one of its processes."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import AllowLossy, DataDir, Host, Port, Public, TlsCert, TlsKey
from app.cli.replay import token_of
from app.errors import StartUpFailed

if TYPE_CHECKING:
    from app.settings import Settings


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Imports without garbage collections: these take a fifth of a server's, and free nothing.

    What was imported is left out of later ones.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def serve(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    public: Public = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    allow_lossy: AllowLossy = False,
) -> None:
    """Run everything on this machine: API, consumer, event queue and store, in one directory.

    Example: paceline serve --port 8642 --data-dir /var/lib/paceline
    """
    with _quick_imports():
        from app.cli.supervisor import StopSignal, Supervisor, remote_access_hint
        from app.settings import load_settings
        from app.telemetry import set_up_logging

    settings = load_settings(
        host=host,
        port=port,
        data_dir=data_dir,
        public=public or None,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_lossy=allow_lossy or None,
    )
    set_up_logging(settings.log_format)
    settings = settings.with_token().with_secret_key()
    changes: dict[str, Path | float] = {"demo_switch": settings.data_dir / "demo-is-on"}
    if "canary_every_s" not in settings.model_fields_set:
        changes["canary_every_s"] = _CANARY_EVERY_S
    settings = settings.model_copy(update=changes)
    stop = StopSignal()
    with ExitStack() as stack:
        everything = Supervisor(settings, stop)
        everything.start(stack)
        _print_address(settings, f"Data:   {settings.data_dir}", *remote_access_hint(settings))
        everything.keep_running()


def demo(
    host: Host = None,
    port: Port = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep the demo's data here. Default: a temporary directory.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background until stopped by `kill`.")
    ] = False,
) -> None:
    """Run everything, with six simulated jobs: one healthy, five faulty for different reasons.

    Where the port is in use, as beside a running `paceline serve`, the demo takes a free one.

    Example: paceline demo
    """
    with _quick_imports():
        from app.cli.demo_jobs import demo_jobs
        from app.cli.supervisor import StopSignal, Supervisor, end_with_parent, page_url
        from app.telemetry import set_up_logging

    if detach:
        _detach_demo(host, port, data_dir)
        return
    end_with_parent()  # so that stopping make or a script stops the demo
    stop = StopSignal()
    with ExitStack() as stack:
        directory = data_dir or Path(stack.enter_context(TemporaryDirectory(prefix="paceline-")))
        settings, notes = _demo_settings(host, port, directory)
        set_up_logging(settings.log_format)
        settings = settings.with_token().with_secret_key()
        everything = Supervisor(settings, stop)
        everything.start(stack)
        everything.start_demo()
        url = page_url(settings)
        to_see = [f"  {url}/jobs/{job.job_id}\n      {job.to_see}" for job in demo_jobs()]
        heading = "What to look at; first figures come after about 3 s, the first fault after 30 s:"
        _print_address(settings, *notes, heading, *to_see)
        everything.keep_running()


_DETACHED_WITHIN_S = 120.0


def _detach_demo(host: str | None, port: int | None, data_dir: Path | None) -> None:
    """Start the demo in a session of its own, and say where it is and how it is stopped."""
    from app.cli.supervisor import paceline_command

    directory = data_dir or Path(mkdtemp(prefix="paceline-"))
    directory.mkdir(parents=True, exist_ok=True)
    output = directory / "demo.log"
    given = (("--host", host), ("--port", port), ("--data-dir", directory))
    options = [part for name, value in given if value is not None for part in (name, str(value))]
    with output.open("wb") as log:
        demo = subprocess.Popen(  # noqa: S603
            paceline_command("demo", *options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until_s = time.monotonic() + _DETACHED_WITHIN_S
    while _END_OF_ADDRESS not in output.read_text(errors="replace"):
        if demo.poll() is not None or time.monotonic() > until_s:
            demo.terminate()
            raise StartUpFailed(f"the demo did not start: {output} says why")
        time.sleep(0.1)
    shown = output.read_text(errors="replace").partition(_END_OF_ADDRESS)[0].rstrip()
    typer.echo(f"{shown}\n\nIt runs in the background: kill {demo.pid} stops it; log: {output}")


# The canary is on where everything runs on one machine, unless that was set.
_CANARY_EVERY_S = 120.0
_END_OF_ADDRESS = "Ctrl-C stops everything."


# Shorter than for real jobs, so that the stalled demo job is soon shown as such.
_DEMO_SILENT_AFTER_S = 45.0


def _demo_settings(
    host: str | None, port: int | None, data_dir: Path
) -> tuple["Settings", list[str]]:
    """Settings of the demo, and what the reader should know of them."""
    from app.cli.supervisor import free_port, is_port_free
    from app.settings import load_settings

    settings = load_settings(host=host, port=port, data_dir=data_dir)
    changes: dict[str, float] = {}
    notes = []
    if "silent_after_s" not in settings.model_fields_set:
        changes["silent_after_s"] = _DEMO_SILENT_AFTER_S
    if "port" not in settings.model_fields_set and not is_port_free(settings.host, settings.port):
        changes["port"] = free_port(settings.host)
        notes = [f"Port {settings.port} is in use, so the demo has another.", ""]
    return settings.model_copy(update=changes), notes


# Workers stand for other machines: at low priority they leave the processor to the server.
_NICE_OF_WORKERS = 10


def demo_jobs_command(url: Annotated[str, typer.Option()]) -> None:
    """Push the demo's jobs to a server until stopped; the token is in PACELINE_TOKEN."""
    with _quick_imports():
        from app.cli.demo_jobs import demo_jobs, push_demo_job
        from app.settings import load_settings

    os.nice(_NICE_OF_WORKERS)
    settings = load_settings()
    stop = _stop_event()
    threads = [
        threading.Thread(target=push_demo_job, args=(job, url, token_of(settings), stop))
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
    """Run only the API, for production; needs PACELINE_DATABASE_URL and PACELINE_REDIS_URL.

    Example: PACELINE_TOKEN=pl_... paceline api --host 0.0.0.0 --public
    """
    with _quick_imports():
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
            help="What the log and the status page call this consumer. Default: the host's name."
        ),
    ] = None,
    identity: Annotated[str | None, typer.Option(hidden=True)] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that queue and store can be used.")
    ] = False,
    allow_lossy: AllowLossy = False,
) -> None:
    """Run only a consumer, for production; several consumers share the jobs.

    Example: paceline consumer --name consumer-0
    """
    with _quick_imports():
        from app.consumer import main
        from app.settings import load_settings

    settings = load_settings(allow_lossy=allow_lossy or None)
    if check:
        main.check(settings)
    else:
        main.run(settings, name or socket.gethostname(), _stop_event(), identity=identity)


def _stop_event() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


def _print_address(settings: "Settings", *more: str) -> None:
    from app.cli.supervisor import address_lines

    # Plain lines: an address with a frame or a line break cannot be clicked or copied.
    lines = address_lines(settings, token_of(settings), is_terminal=sys.stdout.isatty())
    text = "\n".join(["", *lines, "", *more, "", _END_OF_ADDRESS, ""])
    try:
        typer.echo(text)
    except OSError as error:  # the disk that standard output is on is full: what runs goes on
        import structlog

        structlog.get_logger().warning("address not printed", reason=str(error))
