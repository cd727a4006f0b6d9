"""Results and single charts as HTML files that need no server and no network.

The files contain Plotly's script with the charts that Paceline draws, and the page's font.
"""

import html
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from app.charts.base.figure import PlotlyFigure
from app.charts.base.theme import Theme
from app.charts.report.html import LOADER, Assets, script_data

if TYPE_CHECKING:
    from app.result.window_result import WindowResult
    from app.trace.window import Window


def write_report(result: "WindowResult", window: "Window", path: Path) -> None:
    """Write the report; atomic. Raises InvalidRequest if the file cannot be written."""
    from app.api.service.job_state import ALERT_SLOWDOWN, state_of_window
    from app.charts.report.html import html_report
    from app.cli.output import written_whole

    state = state_of_window(result.slowdown, result.fidelity.verdict, ALERT_SLOWDOWN)
    page = html_report(result, state=state, hosts=window.hosts, assets=assets())
    with written_whole(path) as file:
        file.write(page.encode(errors="replace"))


@cache
def assets() -> Assets:
    """What files contain besides their figures, from the installed frontend."""
    from app.api.pages import PLOTLY_FILE, frontend_dir

    folder = frontend_dir()
    return Assets(
        (folder / PLOTLY_FILE).read_bytes(), (folder / "fonts" / "inter-latin.woff2").read_bytes()
    )


_CHART_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ box-sizing: border-box; margin: 0 auto; padding: 24px 16px; max-width: 992px;
background: {surface}; color: {ink}; font: 14px/1.5 system-ui, sans-serif }}</style></head>
<body><h1>{title}</h1><p>{text}</p><div id="chart" role="img" aria-label="{text}"></div>
{script}
<script>{loader}
const config = {{displayModeBar: false, responsive: true}}
loadPlotly().then(() => Plotly.newPlot("chart", {data}, {layout}, config))
</script></body></html>
"""


def chart_page(title: str, figure: PlotlyFigure, theme: Theme) -> str:
    """HTML page with the figure and its sentence."""
    return _CHART_PAGE.format(
        title=html.escape(title),
        text=html.escape(figure["meta"]["text"]),
        surface=theme.surface,
        ink=theme.ink,
        script=script_data(assets()),
        loader=LOADER,
        data=_script_json(figure["data"]),
        layout=_script_json(figure["layout"]),
    )


def _script_json(content: object) -> str:
    # "</script>" inside a text would end the script.
    return json.dumps(content, allow_nan=False).replace("</", "<\\/")
