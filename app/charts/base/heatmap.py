"""Heatmaps in the slowdown scale: their cells on a step axis, and the labels of their rows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app import formatting
from app.charts.base.figure import integers, numbers
from app.charts.base.plotly import PlotlyTrace
from app.charts.base.step_axis import StepAxis
from app.charts.base.theme import SCALE_MAX, SCALE_MIN, Theme

Floats = NDArray[np.float64]
# Slowdowns by worker, or by step and worker or rank; None or not finite where not measured.
Slowdowns = (
    ArrayLike | Sequence[Sequence[float | None]] | Sequence[Sequence[Sequence[float | None]]]
)

_MAX_LABEL_CHARS = 22  # what fits at the left of the plot


def heatmap(rows: Floats, theme: Theme) -> PlotlyTrace:
    """A heatmap trace in the slowdown scale, whose domain never fits itself to the values."""
    return {
        "type": "heatmap",
        "z": numbers(rows),
        "zmin": SCALE_MIN,
        "zmax": SCALE_MAX,
        "colorscale": theme.colorscale,
        "showscale": False,
        "hoverongaps": False,
    }


def _on_axis(steps: Sequence[int], values: Floats, at: StepAxis) -> Floats:
    """Values [row, step of `steps`] as [row, column of the axis], NaN in its gaps."""
    index = {step: index for index, step in enumerate(steps)}
    columns = [-1 if drawn is None else index.get(at.steps[drawn], -1) for drawn in at.columns]
    return np.column_stack([values, np.full(len(values), np.nan)])[:, columns]


def column_steps(at: StepAxis) -> list[int]:
    """The step of each column, 0 in gaps."""
    return [0 if index is None else at.steps[index] for index in at.columns]


def heatmap_by_step(
    steps: Sequence[int],
    values: Floats,
    at: StepAxis,
    theme: Theme,
    hovertemplate: str,
    ygap: int = 1,
) -> PlotlyTrace:
    """A heatmap of values [row, step of `steps`]; `customdata` has the step of each cell."""
    num_rows, columns = len(values), column_steps(at)
    return heatmap(_on_axis(steps, values, at), theme) | {
        "x": at.edges,
        "y": list(range(num_rows)),
        "xgap": gap_px(2 * len(at.steps)),
        "ygap": ygap,
        "customdata": integers(np.broadcast_to(columns, (num_rows, len(columns)))),
        "hovertemplate": hovertemplate,
    }


def row_label(
    name: str, host: str | None, theme: Theme, *, otherwise: str = "", end: str = ""
) -> str:
    """A row's name, then in lighter ink its host, cut to fit (or `otherwise`), and `end`."""
    room = _MAX_LABEL_CHARS - len(name) - len(end)
    where = (formatting.chart_label(host, max_chars=room) if host else otherwise) + end
    return f'{name} <span style="color:{theme.ink3}">{where}</span> ' if where else f"{name} "


def gap_px(num_cells: int) -> int:
    """Space between cells, by how many share the width."""
    return 3 if num_cells <= 16 else 2 if num_cells <= 48 else 1 if num_cells <= 160 else 0


def are_alike(slowdown: Floats, within: float) -> bool:
    """Whether several slowdowns are all known and this near to 1."""
    is_near = np.abs(slowdown - 1) <= within
    return slowdown.size > 1 and bool(np.isfinite(slowdown).all() and is_near.all())
