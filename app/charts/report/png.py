"""A figure as a PNG, for messages and tickets, where kaleido is installed."""

import os
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import plotly

from app.charts.base.figure import DrawnFigure, PlotlyFigure
from app.charts.base.plotly import PlotlyLayout
from app.charts.base.theme import Theme
from app.charts.worker.heatmap import VALUES_TRACE
from app.errors import NotInstalled, Unavailable

TIMEOUT_S = 20.0
_SCALE = 2  # sharp on the screens that people read messages on
_MIN_VALUE_CELL_PX = 40  # as in frontend/js/components/chart-card.js


def is_png_available() -> bool:
    """Whether kaleido is installed (its browser is not checked)."""
    return find_spec("kaleido") is not None


def png(figure: PlotlyFigure, theme: Theme, *, width_px: int) -> bytes:
    """The picture on the theme's card; takes a second or two, as a browser draws it.

    Raises:
        NotInstalled: kaleido is not, or finds no browser; the message says what to install.
        Unavailable: the browser took too long.
    """
    try:
        kaleido = import_module("kaleido")
    except ImportError:
        raise NotInstalled("pictures need kaleido here: pip install 'paceline[png]'") from None
    drawn = _on_card(figure, theme, width_px)
    size = {"width": width_px, "height": drawn["layout"]["height"]}
    options = {"format": "png", "scale": _SCALE, **size}
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    # Nothing from a network: Plotly is the installed one, and MathJax is not wanted.
    page = {"plotlyjs": script, "mathjax": False, "timeout": TIMEOUT_S} | _browser()
    try:
        picture: bytes = kaleido.calc_fig_sync(drawn, options, kopts=page)
    except TimeoutError as error:
        raise Unavailable(
            f"the picture was not drawn within {TIMEOUT_S:.0f} s: try again"
        ) from error
    except (RuntimeError, OSError) as error:
        raise NotInstalled(f"kaleido cannot draw here: {error}; it needs Chromium") from error
    return picture


def _browser() -> dict[str, str]:
    """Kaleido finds any browser but the one that Debian has for servers."""
    path = shutil.which("chromium-headless-shell")
    return {"path": path} if path and "BROWSER_PATH" not in os.environ else {}


def _on_card(figure: PlotlyFigure, theme: Theme, width_px: int) -> DrawnFigure:
    layout = figure["layout"] | {"width": width_px, "paper_bgcolor": theme.surface}
    cell_px = _cell_px(layout, width_px)
    has_room = cell_px is None or cell_px >= _MIN_VALUE_CELL_PX
    traces = [trace for trace in figure["data"] if has_room or trace.get("name") != VALUES_TRACE]
    return {"data": traces, "layout": layout | {"plot_bgcolor": theme.surface}}


def _cell_px(layout: PlotlyLayout, width_px: int) -> float | None:
    """Width of what is 1 wide on the x axis; None where the axis has no range of its own."""
    margin, ends = layout["margin"], layout.get("xaxis", {}).get("range")
    if ends is None or ends[0] == ends[1]:
        return None
    return (width_px - margin["l"] - margin["r"]) / abs(ends[1] - ends[0])
