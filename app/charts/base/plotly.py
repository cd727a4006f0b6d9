"""Plotly's properties that our charts use, typed: mypy reports a misspelt one.

What they mean: https://plotly.com/javascript/reference. The functions at the end make the shapes
and the texts of most charts.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict

Horizontal = Literal["left", "center", "right"]
Vertical = Literal["top", "middle", "bottom"]


class PackedNumbers(TypedDict, total=False):
    """Numbers as little-endian bytes in base64; `shape` is only there for two dimensions."""

    dtype: str
    bdata: str
    shape: str


# None where not known.
Numbers = PackedNumbers | Sequence[float | None] | Sequence[Sequence[float | None]]
HoverValue = str | int | None
HoverData = PackedNumbers | Sequence[HoverValue] | Sequence[Sequence[HoverValue]]


class PlotlyFont(TypedDict, total=False):
    """A font; of a trace's texts each may have its colour."""

    family: str
    size: float
    color: str | Sequence[str]


class PlotlyLine(TypedDict, total=False):
    """A line, or the edge of a shape or marker."""

    color: str
    width: float
    dash: str
    shape: Literal["linear", "hv"]


class PlotlyPattern(TypedDict, total=False):
    """The hatch of bars."""

    shape: str | Sequence[str]
    size: float
    solidity: float
    fillmode: Literal["replace"]
    fgcolor: str
    bgcolor: str


class PlotlyMarker(TypedDict, total=False):
    """Markers or bars of a trace."""

    symbol: str
    size: float | Sequence[float]
    color: str | Sequence[str]
    opacity: float
    line: PlotlyLine
    pattern: PlotlyPattern


class PlotlyTrace(TypedDict, total=False):
    """A trace of any type; `meta` is for our own scripts."""

    type: Literal["bar", "heatmap", "scatter"]
    name: str
    mode: str
    orientation: Literal["h"]
    x: Numbers
    y: Numbers
    z: Numbers
    xaxis: str
    base: Numbers
    width: float
    zmin: float
    zmax: float
    colorscale: Sequence[Sequence[float | str]]
    showscale: bool
    xgap: float
    ygap: float
    line: PlotlyLine
    marker: PlotlyMarker
    fill: Literal["toself"]
    fillcolor: str
    connectgaps: bool
    cliponaxis: bool
    text: Sequence[str] | Numbers
    textposition: str | Sequence[str]
    textfont: PlotlyFont
    textangle: float
    insidetextanchor: Literal["middle"]
    constraintext: Literal["none"]
    customdata: HoverData
    hoverinfo: Literal["skip"]
    hoverongaps: bool
    hovertemplate: str
    meta: dict[str, list[str]]


class PlotlyTitle(TypedDict, total=False):
    """The title of an axis."""

    text: str
    font: PlotlyFont
    standoff: float


class PlotlyAxis(TypedDict, total=False):
    """An axis."""

    type: Literal["log"]
    title: PlotlyTitle
    domain: list[float]
    range: list[float]
    rangemode: Literal["tozero"]
    fixedrange: bool
    showgrid: bool
    gridcolor: str
    zeroline: bool
    zerolinecolor: str
    showline: bool
    linecolor: str
    linewidth: float
    ticks: str
    tick0: float
    dtick: float
    nticks: int
    tickvals: Sequence[float]
    ticktext: list[str]
    tickangle: float
    tickfont: PlotlyFont
    tickformat: str
    ticksuffix: str
    ticklabelstandoff: float
    showticklabels: bool


class PlotlyShape(TypedDict, total=False):
    """A line or rectangle."""

    type: Literal["line", "rect"]
    xref: str
    yref: str
    xsizemode: Literal["pixel"]
    xanchor: float
    x0: float
    x1: float
    y0: float
    y1: float
    line: PlotlyLine
    fillcolor: str
    layer: Literal["below"]


class PlotlyAnnotation(TypedDict, total=False):
    """A text, where `showarrow` with an arrow that begins `ax` and `ay` pixels away."""

    xref: str
    yref: str
    x: float
    y: float
    xanchor: Horizontal
    yanchor: Vertical
    xshift: float
    yshift: float
    text: str
    hovertext: str
    align: Horizontal
    font: PlotlyFont
    bgcolor: str
    borderpad: float
    showarrow: bool
    arrowhead: int
    arrowwidth: float
    arrowcolor: str
    ax: float
    ay: float


class PlotlyMargin(TypedDict, total=False):
    """Pixels around the plot."""

    l: float  # noqa: E741 - Plotly's name
    r: float
    t: float
    b: float
    pad: float


class PlotlyHoverLabel(TypedDict, total=False):
    """The box that hovering shows."""

    bgcolor: str
    bordercolor: str
    font: PlotlyFont
    align: Horizontal


class PlotlyLegend(TypedDict, total=False):
    """The legend."""

    orientation: Literal["h"]
    x: float
    y: float
    yanchor: Vertical
    traceorder: str
    itemclick: bool
    itemdoubleclick: bool


class PlotlyLayout(TypedDict, total=False):
    """All of a figure but its traces."""

    width: int
    height: int
    margin: PlotlyMargin
    paper_bgcolor: str
    plot_bgcolor: str
    font: PlotlyFont
    showlegend: bool
    legend: PlotlyLegend
    dragmode: Literal["zoom", False]
    hovermode: Literal["closest", "x"]
    hoverlabel: PlotlyHoverLabel
    barmode: Literal["overlay", "stack"]
    bargap: float
    xaxis: PlotlyAxis
    xaxis2: PlotlyAxis
    yaxis: PlotlyAxis
    shapes: list[PlotlyShape]
    annotations: list[PlotlyAnnotation]


def text_at(place: PlotlyAnnotation, text: str, colour: str, size_px: int = 11) -> PlotlyAnnotation:
    """A text at a place, without an arrow."""
    font: PlotlyFont = {"size": size_px, "color": colour}
    return place | {"text": text, "showarrow": False, "font": font}


def line_style(colour: str, width_px: float, dash: str) -> PlotlyLine:
    """A line's colour, width and dashes."""
    return {"color": colour, "width": width_px, "dash": dash}


def line_between(x: tuple[float, float], y: tuple[float, float], line: PlotlyLine) -> PlotlyShape:
    """A straight line between two points."""
    return {"type": "line", "x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1], "line": line}


def box(x: tuple[float, float], y: tuple[float, float], line: PlotlyLine) -> PlotlyShape:
    """A rectangle between two corners."""
    return line_between(x, y, line) | {"type": "rect"}
