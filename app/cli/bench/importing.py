"""`paceline bench import`: how much memory and time does a large foreign file take?"""

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from app.errors import InvalidRequest


def importing(
    format_: Annotated[
        str, typer.Option("--format", help="One of kineto, ndtimeline, otlp and published.")
    ],
    megabytes: Annotated[
        int, typer.Option("--mb", min=1, help="Size of the file, unpacked.")
    ] = 100,
    folder: Annotated[
        Path | None, typer.Option(help="Where to make it; left out: the temporary folder.")
    ] = None,
) -> None:
    """Make a large file, import it into a trace in a process of its own, and say what that took.

    Example: paceline bench import --format kineto --mb 300
    """
    from app.cli.bench.large_files import MAKERS
    from app.cli.children import paceline

    if format_ not in MAKERS:
        raise InvalidRequest(f"--format {format_}: name one of {', '.join(MAKERS)}")
    with tempfile.TemporaryDirectory(prefix="paceline-large-", dir=folder) as name:
        files = MAKERS[format_](Path(name), megabytes << 20)
        out = Path(name) / "trace-out.parquet"
        command = paceline("import", format_, *map(str, files), "--out", str(out))
        began_s = time.monotonic()
        peak_bytes = _peak_bytes(command)
        result = {
            "format": format_,
            "file_mb": sum(path.stat().st_size for path in files) / 1e6,
            "unpacked_mb": megabytes * 1.048576,
            "seconds": time.monotonic() - began_s,
            "peak_rss_mb": peak_bytes / 1e6,
            "out_mb": out.stat().st_size / 1e6,
        }
    typer.echo(json.dumps(result))


def _peak_bytes(command: list[str]) -> int:
    """The most memory that the process held."""
    import os

    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=said, stderr=said)  # noqa: S603, ours
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            raise InvalidRequest(said.read().decode(errors="replace").strip()[-500:])
    return usage.ru_maxrss * 1024
