"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.")]
Public = Annotated[
    bool,
    typer.Option(
        "--public",
        help="Allow addresses other than loopback without TLS, as behind a proxy; set "
        "PACELINE_ALLOWED_HOSTS to the host names that clients use.",
    ),
]
TlsCert = Annotated[
    Path | None, typer.Option(help="Certificate chain (PEM), for TLS.", metavar="FILE")
]
TlsKey = Annotated[
    Path | None, typer.Option(help="Private key (PEM) of the certificate.", metavar="FILE")
]
AllowLossy = Annotated[
    bool,
    typer.Option(
        "--allow-lossy", help="Start even if queue or store are configured to lose data in a crash."
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Directory of queue, store and token.")]

TraceFile = Annotated[
    Path, typer.Argument(help="Published parquet trace.", metavar="TRACE.parquet")
]
MetaFile = Annotated[
    Path | None,
    typer.Option(help="Its meta file. Default: meta-NAME.yaml beside trace-NAME.parquet."),
]


def json_option(content: str) -> Any:
    """The option --json, for the content that a command writes."""
    return typer.Option("--json", help=f"Write {content} here; - is standard output.")


def token_option(purpose: str) -> Any:
    """The option --token; its help begins with the purpose."""
    help_text = f"{purpose}. Default: the one in the data directory."
    return typer.Option(envvar="PACELINE_TOKEN", help=help_text)
