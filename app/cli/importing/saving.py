"""An import, into a trace file and its meta file."""

from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.console import notes
from app.cli.files import written_whole

if TYPE_CHECKING:
    from app.trace.job import Job
    from app.trace.readers.foreign import Described, Import


def save(opened: "Import", described: "Described", job: "Job", out: Path) -> None:
    """Write both files; neither is there by halves.

    Raises:
        InvalidTrace: rows are wrong.
        InvalidRequest: a file cannot be written.
    """
    from rich.progress import Progress

    from app.trace.readers import imported, published_collectives
    from app.trace.readers.meta import usual_path

    total = described.num_ops
    with Progress(console=notes(), transient=True) as progress:
        bar = progress.add_task("writing", total=total)
        with written_whole(usual_path(out)) as about, written_whole(out) as file:
            imported.write(opened, job, file, lambda rows: progress.advance(bar, rows))
            about.write(imported.meta_text(described, job).encode())
    # Those of the trace that was there before are not of this one.
    published_collectives.usual_path(out).unlink(missing_ok=True)
