"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.")]
DataDir = Annotated[Path | None, typer.Option(help="Where queue, store and token are kept.")]

TraceFile = Annotated[
    Path, typer.Argument(help="Published parquet trace.", metavar="TRACE.parquet")
]
MetaFile = Annotated[
    Path | None,
    typer.Option(help="Its meta file; left out: meta-NAME.yaml beside trace-NAME.parquet."),
]
