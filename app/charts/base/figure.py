"""A whole Plotly figure as plain data, with its sentence and its table beside it.

Every chart returns a `PlotlyFigure`, made with `layout`, `axis` and `meta`.
"""

import base64
from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.charts.base.plotly import (
    Numbers,
    PackedNumbers,
    PlotlyAxis,
    PlotlyFont,
    PlotlyLayout,
    PlotlyMargin,
    PlotlyTitle,
    PlotlyTrace,
)
from app.charts.base.theme import Theme
from app.formatting import ClockDetail

# Plotly's binary arrays: little-endian doubles.
_DTYPE = np.dtype("<f8")

Cell = str | int | float | None


class FigureTable(TypedDict):
    """The table behind "show as table"; `caption` names what is left out."""

    columns: list[str]
    rows: list[list[Cell]]
    caption: NotRequired[str]


class AxisItems(TypedDict):
    """Items along an axis, in the order of its positions.

    `items` are dp ranks or stages (a list of them where several share a place), steps (first and
    last where a place is a stretch of them) or workers (dp rank and stage). `at` are their
    positions, each one wide; without it they are 0, 1, 2 and so on.
    """

    what: Literal["dp", "stage", "step", "worker"]
    items: list[int] | list[list[int]] | list[int | list[int]]
    at: NotRequired[list[float]]


class ItemsByAxis(TypedDict, total=False):
    """Items by axis: the page finds the worker or step under the pointer with them."""

    x: AxisItems
    y: AxisItems


class AxisClock(TypedDict):
    """When the steps along a step axis started, so that the page can give the reader's local time.

    `started_s` are the Unix times of the drawn `steps`, null where not known; `columns` is the
    position in `steps` of each column of a heatmap, null in a gap; `ticks` has the times written
    below the tick labels, null below those without one, as exact as `detail` says.
    """

    steps: list[int]
    started_s: list[float | None]
    columns: list[int | None]
    ticks: list[float | None]
    detail: ClockDetail


class FigureMeta(TypedDict):
    """Text alternative of a figure; `note` explains an odd one.

    `alike` says in a sentence all that the picture would show, where every value of it is the same.
    """

    text: str
    table: FigureTable
    note: NotRequired[str]
    alike: NotRequired[str]
    places: NotRequired[ItemsByAxis]
    clock: NotRequired[AxisClock]


class DrawnFigure(TypedDict):
    """Plotly's `data` and `layout`, ready for JSON."""

    data: list[PlotlyTrace]
    layout: PlotlyLayout


class PlotlyFigure(DrawnFigure):
    """What Plotly draws, and `meta`."""

    meta: FigureMeta


def numbers(values: ArrayLike | Sequence[float | None]) -> Numbers:
    """Numbers as Plotly reads them: packed when all are known, else lists with None for unknown."""
    array = np.asarray(values, dtype=_DTYPE)
    if array.size and np.isfinite(array).all():
        return _packed(array, "f8")
    plain = array.astype(object)
    plain[~np.isfinite(array)] = None
    return list(plain.tolist())


def integers(values: ArrayLike) -> PackedNumbers:
    """Whole numbers as Plotly reads them, packed; of two dimensions with their shape."""
    return _packed(np.asarray(values, dtype="<i4"), "i4")


def _packed(array: NDArray[np.float64] | NDArray[np.int32], dtype: str) -> PackedNumbers:
    packed: PackedNumbers = {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode()}
    if array.ndim > 1:
        packed["shape"] = ", ".join(str(size) for size in array.shape)
    return packed


def layout(
    theme: Theme, *, height_px: int, left_px: int, **parts: Unpack[PlotlyLayout]
) -> PlotlyLayout:
    """The frame that all charts share: transparent, quiet, no title and no mode bar."""
    given = parts.pop("margin", {})
    margin: PlotlyMargin = {"l": left_px, "r": 8, "t": 8, "b": 36, "pad": 0, **given}
    return {
        "height": height_px,
        "margin": margin,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": _font(11, theme.ink2),
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": theme.surface,
            "bordercolor": theme.line2,
            "font": _font(12, theme.ink),
            "align": "left",
        },
        **parts,
    }


def axis(theme: Theme, **parts: Unpack[PlotlyAxis]) -> PlotlyAxis:
    """An axis with its line and labels only; charts add the grid where it helps reading."""
    return {
        "showgrid": False,
        "zeroline": False,
        "showline": True,
        "linecolor": theme.line2,
        "linewidth": 1,
        "gridcolor": theme.line,
        "ticks": "",
        "tickangle": 0,
        "tickfont": _font(11, theme.ink2),
        "fixedrange": True,
        **parts,
    }


def title(text: str, theme: Theme) -> PlotlyTitle:
    """An axis title."""
    return {"text": text, "font": _font(11, theme.ink2), "standoff": 8}


def label_width_px(labels: Sequence[str]) -> int:
    """Width for axis labels of 11 px, with 8 px to spare; at least 48 px."""
    return max(48, round(6.1 * max((len(label) for label in labels), default=0)) + 8)


def row_axis(labels: Sequence[str], theme: Theme) -> PlotlyAxis:
    """The y axis of rows with these labels, the first row on top."""
    ends = [max(1, len(labels)) - 0.5, -0.5]
    return axis(theme, range=ends, tickvals=list(range(len(labels))), ticktext=list(labels))


def meta(
    text: str,
    columns: list[str],
    rows: list[list[Cell]],
    *,
    note: str = "",
    caption: str = "",
    places: ItemsByAxis | None = None,
    clock: AxisClock | None = None,
    alike: str = "",
) -> FigureMeta:
    """The sentence and the table of a figure, and what else is known of it."""
    table = FigureTable(columns=columns, rows=rows)
    if caption:
        table["caption"] = caption
    others = {"note": note, "places": places, "clock": clock, "alike": alike}
    known = {name: value for name, value in others.items() if value}
    return cast(FigureMeta, {"text": text, "table": table, **known})


def _font(size_px: int, colour: str) -> PlotlyFont:
    family = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif'
    return {"family": family, "size": size_px, "color": colour}
