"""A chart as a page of its own, with everything in it that draws it."""

import html
import json

from app.charts.figure import Figure
from app.charts.theme import Theme
from app.cli.plotly_script import plotly_script

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ box-sizing: border-box; margin: 0 auto; padding: 24px 16px; max-width: 992px;
background: {surface}; color: {ink}; font: 14px/1.5 system-ui, sans-serif }}</style></head>
<body><h1>{title}</h1><p>{text}</p><div id="chart" role="img" aria-label="{text}"></div>
<script>{plotly}</script>
<script>Plotly.newPlot("chart", {data}, {layout}, {{displayModeBar: false, responsive: true}})
</script></body></html>
"""


def page(title: str, figure: Figure, theme: Theme) -> str:
    """HTML that shows the figure and its sentence."""
    return _PAGE.format(
        title=html.escape(title),
        text=html.escape(figure["meta"]["text"]),
        surface=theme.surface,
        ink=theme.ink,
        plotly=plotly_script(),
        data=_json(figure["data"]),
        layout=_json(figure["layout"]),
    )


def _json(content: object) -> str:
    # "</script>" inside a text would end the script.
    return json.dumps(content, allow_nan=False).replace("</", "<\\/")
