"""Hold the running API to its own description, with requests that Schemathesis generates."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from app.cli.supervisor import StopSignal, Supervisor, paceline_command
from app.errors import InvalidRequest, StartUpFailed
from app.settings import Settings, load_settings, new_token
from app.store import windows
from app.store.database import Store
from app.trace.job import DEFAULT_PROJECT, job_key
from tests.harness.processes import free_port, wait_until

_ROOT = Path(__file__).parents[2]
_CONFIG = Path(__file__).with_name("schemathesis.toml")
_STEPS = 16
_JOB = "llm-70b"  # as the examples in the description name it


def schema(
    minutes: Annotated[
        float | None, typer.Option(min=0.05, help="Go on for so long; unset: once through.")
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="Generated requests per operation.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed generates the same requests.")] = 1,
) -> None:
    """Send the API what its description allows, and what it does not; prints JSON.

    Starts a server of its own with one simulated job. Ends with status 1 where an answer breaks the
    description, and shows the request. Wants Schemathesis, which the tests install.

    Example: python -m benchmarks schema --minutes 5
    """
    if find_spec("schemathesis") is None:
        raise StartUpFailed("this wants Schemathesis: pip install 'paceline[test]'")
    with TemporaryDirectory(prefix="paceline-") as name, _server(Path(name)) as settings:
        report = Path(name) / "report.json"
        limits = [] if minutes is None else ["--max-time", str(round(60 * minutes))]
        limits += ["--max-examples", str(examples), "--seed", str(seed)]
        ended = _schemathesis(settings, report, limits)
        found = _summary(report) if report.exists() else {}
    typer.echo(json.dumps({"seed": seed, "passed": ended == 0, **found}))
    raise typer.Exit(1 if ended else 0)


def _schemathesis(settings: Settings, report: Path, limits: list[str]) -> int:
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(_CONFIG), "run"]
    command += [f"{_url(settings)}/openapi.json", "--checks", "all", "--no-color", *limits]
    command += ["--header", f"Authorization: Bearer {_token(settings)}"]
    command += ["--report", "json", "--report-json-path", str(report)]
    # Its hooks are in this package, and it runs in another directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *_python_path()])}
    # Its report goes to standard error: standard output has the figures.
    done = subprocess.run(
        command, stdout=sys.stderr, cwd=report.parent, env=environment, check=False
    )
    return done.returncode


def _python_path() -> list[str]:
    given = os.environ.get("PYTHONPATH")
    return [given] if given else []


@contextmanager
def _server(directory: Path) -> Iterator[Settings]:
    """A whole Paceline in the directory, with one job whose windows are closed."""
    settings = load_settings(
        host="127.0.0.1",
        port=free_port(),
        data_dir=directory / "data",
        database_url=f"sqlite:///{directory / 'paceline.db'}",
        token=new_token(),
        limit_jobs=1_000_000,
    )
    with ExitStack() as stack:
        Supervisor(settings, StopSignal()).start(stack)
        _push_job(settings, directory)
        yield settings


def _push_job(settings: Settings, directory: Path) -> None:
    trace = str(directory / "trace-made.parquet")
    sizes = ["--dp", "2", "--pp", "2", "--microbatches", "4", "--steps", str(_STEPS)]
    _paceline(["simulate", *sizes, "--out", trace])
    options = ["--url", _url(settings), "--token", _token(settings), "--job", _JOB]
    _paceline(["replay", trace, "--speed", "max", *options])
    store = Store(settings.store_url)
    try:
        wait_until(lambda: _num_closed(store) * settings.window_steps == _STEPS, "windows closed")
    finally:
        store.close()


def _num_closed(store: Store) -> int:
    with store.read() as conn:
        found, _ = windows.page(conn, job_key(DEFAULT_PROJECT, _JOB))
    return sum(each.state != "open" for each in found)


def _paceline(arguments: list[str]) -> None:
    done = subprocess.run(paceline_command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise InvalidRequest(done.stderr.strip())


def _token(settings: Settings) -> str:
    return settings.token.get_secret_value() if settings.token else ""


def _summary(report: Path) -> dict[str, Any]:
    totals = json.loads(report.read_text())
    return {
        "requests": totals["test_cases"]["generated"],
        "operations": totals["operations"]["tested"],
        "failures": len(totals["failures"]),
        "seconds": round(totals["running_time"], 1),
    }


def _url(settings: Settings) -> str:
    return f"http://{settings.host}:{settings.port}"
