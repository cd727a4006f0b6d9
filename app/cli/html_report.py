"""A result as a file that a browser opens without a server and without a network."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.trace.window import Window


def write_report(result: dict[str, Any], window: "Window", path: Path) -> None:
    """Write the report whole or not at all.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    from app.api.job_state import Thresholds, window_state
    from app.charts.report import report
    from app.cli.files import written_whole
    from app.cli.plotly_script import plotly_script

    state = window_state(result["slowdown"], result["fidelity"]["verdict"], Thresholds())
    page = report(result, state=state, hosts=window.hosts, script=plotly_script())
    with written_whole(path) as file:
        file.write(page.encode(errors="replace"))
