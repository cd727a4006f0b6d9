"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.")]
Public = Annotated[
    bool,
    typer.Option(
        "--public",
        help="Listen on other than loopback addresses without TLS, as behind a proxy; set "
        "PACELINE_ALLOWED_HOSTS to the names by which it is asked.",
    ),
]
TlsCert = Annotated[
    Path | None, typer.Option(help="Certificate chain (PEM): answer over TLS.", metavar="FILE")
]
TlsKey = Annotated[
    Path | None, typer.Option(help="Private key (PEM) of the certificate.", metavar="FILE")
]
AllowLossy = Annotated[
    bool,
    typer.Option(
        "--allow-lossy", help="Run although queue or store are set up to lose data in a crash."
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Where queue, store and token are kept.")]

TraceFile = Annotated[
    Path, typer.Argument(help="Published parquet trace.", metavar="TRACE.parquet")
]
MetaFile = Annotated[
    Path | None,
    typer.Option(help="Its meta file; left out: meta-NAME.yaml beside trace-NAME.parquet."),
]
