"""A whole Plotly figure as plain data, with its sentence and its table beside it."""

import base64
from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from app.charts.theme import Theme

# Plotly's binary arrays: little-endian doubles.
_DTYPE = np.dtype("<f8")

Cell = str | int | float | None


class Table(TypedDict):
    """What "show as table" shows; `caption` says what it leaves out."""

    columns: list[str]
    rows: list[list[Cell]]
    caption: NotRequired[str]


class Along(TypedDict):
    """What lies along an axis, in the order of its positions.

    `items` are dp ranks or stages (a list of them where several share a place), steps (first and
    last where a place is a stretch of them) or workers (dp rank and stage). `at` are their
    positions, each one wide; without it they are 0, 1, 2 and so on.
    """

    what: Literal["dp", "stage", "step", "worker"]
    items: list[int] | list[list[int]] | list[int | list[int]]
    at: NotRequired[list[float]]


class Places(TypedDict, total=False):
    """By these a page finds the worker or step under the pointer, and marks it in each chart."""

    x: Along
    y: Along


class Meta(TypedDict):
    """What a reader who cannot see the picture gets; `note` explains an odd figure."""

    text: str
    table: Table
    note: NotRequired[str]
    places: NotRequired[Places]


class Figure(TypedDict):
    """Plotly's `data` and `layout`, ready for JSON, and `meta`."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    meta: Meta


def numbers(values: ArrayLike | Sequence[float | None]) -> dict[str, str] | list[Any]:
    """Numbers as Plotly reads them: packed when all are known, else lists with None for unknown."""
    array = np.asarray(values, dtype=_DTYPE)
    if array.size and np.isfinite(array).all():
        packed = {"dtype": "f8", "bdata": base64.b64encode(array.tobytes()).decode()}
        shape = ", ".join(str(size) for size in array.shape)
        return packed if array.ndim == 1 else packed | {"shape": shape}
    plain = array.astype(object)
    plain[~np.isfinite(array)] = None
    return list(plain.tolist())


def integers(values: ArrayLike) -> dict[str, str]:
    """Whole numbers as Plotly reads them, packed; of two dimensions with their shape."""
    array = np.asarray(values, dtype="<i4")
    packed = {"dtype": "i4", "bdata": base64.b64encode(array.tobytes()).decode()}
    shape = ", ".join(str(size) for size in array.shape)
    return packed if array.ndim == 1 else packed | {"shape": shape}


def layout(theme: Theme, *, height_px: int, left_px: int, **parts: Any) -> dict[str, Any]:
    """The frame that all charts share: transparent, quiet, no title and no mode bar."""
    margin = {"l": left_px, "r": 8, "t": 8, "b": 36, "pad": 0} | parts.pop("margin", {})
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


def axis(theme: Theme, **parts: Any) -> dict[str, Any]:
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


def title(text: str, theme: Theme) -> dict[str, Any]:
    """An axis title."""
    return {"text": text, "font": _font(11, theme.ink2), "standoff": 8}


def label_width_px(labels: Sequence[str]) -> int:
    """Room that axis labels of 11 px need, with 8 px to spare; at least 48 px."""
    return max(48, round(6.1 * max((len(label) for label in labels), default=0)) + 8)


def meta(text: str, columns: list[str], rows: list[list[Cell]], note: str = "") -> Meta:
    """The sentence and the table of a figure."""
    told = Meta(text=text, table=Table(columns=columns, rows=rows))
    if note:
        told["note"] = note
    return told


def _font(size_px: int, colour: str) -> dict[str, Any]:
    family = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif'
    return {"family": family, "size": size_px, "color": colour}
