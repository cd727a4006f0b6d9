"""A heatmap in the slowdown scale, the same in every chart."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.charts.figure import numbers
from app.charts.step_axis import StepAxis
from app.charts.theme import SCALE_MAX, SCALE_MIN, Theme

Floats = NDArray[np.float64]


def heatmap(rows: Floats, theme: Theme, **parts: Any) -> dict[str, Any]:
    """A heatmap trace in the slowdown scale, whose domain never fits itself to the values."""
    return {
        "type": "heatmap",
        "z": numbers(rows),
        "zmin": SCALE_MIN,
        "zmax": SCALE_MAX,
        "colorscale": theme.colorscale,
        "showscale": False,
        "hoverongaps": False,
        **parts,
    }


def on_axis(by_step: Floats, at: StepAxis) -> Floats:
    """Values [row, step of the axis] as [row, column of the axis], with nothing in its gaps."""
    shown = np.full((len(by_step), len(at.columns)), np.nan)
    for column, step in enumerate(at.columns):
        if step is not None:
            shown[:, column] = by_step[:, step]
    return shown


def gap_px(num_cells: int) -> int:
    """Space between cells, by how many share the width."""
    return 3 if num_cells <= 16 else 2 if num_cells <= 48 else 1 if num_cells <= 160 else 0
