"""What is drawn on the worker heatmap: values, crosses, and a mark around who is to blame."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from app import words
from app.charts.theme import Theme
from app.charts.worker_grid import WorkerGrid
from app.words import Hosts

# Text of each cell is in its own trace of this name; the page drops it where cells are narrow.
VALUES = "values"

# Narrowest width the lead panel has on a desk; a marked cell stays 4 px wide there.
_PLOT_WIDTH_PX = 600
_MARK_WIDTH_PX = 4

Worker = tuple[int, int]  # dp rank, stage


def values(grid: WorkerGrid, theme: Theme, silent: Sequence[Worker] = ()) -> dict[str, Any]:
    """Each cell's slowdown in it, but where a cross is."""
    # Plotly's own cell labels are grey on orange, below the contrast that text needs.
    is_shown = np.isfinite(grid.values)
    for dp_rank, stage in silent:
        is_shown[grid.cell(dp_rank, stage)[::-1]] = False
    row, column = np.nonzero(is_shown)
    known = [float(value) for value in grid.values[row, column]]
    return {
        "type": "scatter",
        "mode": "text",
        "name": VALUES,
        "x": column.tolist(),
        "y": row.tolist(),
        "text": [words.ratio(value) for value in known],
        "textfont": {"size": 11, "color": [theme.text_on(value) for value in known]},
        "hoverinfo": "skip",
    }


def crosses(grid: WorkerGrid, silent: Sequence[Worker], theme: Theme) -> dict[str, Any]:
    """A cross where nothing is measured, and on workers that send nothing any more."""
    row, column = np.nonzero(~np.isfinite(grid.values))
    rank = [grid.columns[at][0] for at in column.tolist()]
    stage = [grid.rows[at][0] for at in row.tolist()]
    cells = [*zip(column.tolist(), row.tolist(), strict=True)]
    who = [
        f"{words.worker(*each)}<br><b>not measured</b>"
        for each in zip(rank, stage, strict=True)
        if each not in silent
    ]
    cells = [
        cell
        for cell, each in zip(cells, zip(rank, stage, strict=True), strict=True)
        if each not in silent
    ]
    cells += [grid.cell(*each) for each in silent]
    who += [f"{words.worker(*each)}<br><b>silent</b>" for each in silent]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [column for column, _ in cells],
        "y": [row for _, row in cells],
        "customdata": who,
        "marker": {"symbol": "x-thin", "size": 7, "line": {"color": theme.ink3, "width": 1}},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def outline(grid: WorkerGrid, culprit: Worker, slowdown: float, theme: Theme) -> dict[str, Any]:
    """A line around the culprit's cell, which is never too narrow to be seen."""
    column, row = grid.cell(*culprit)
    half = max(0.5, _MARK_WIDTH_PX / 2 * len(grid.columns) / _PLOT_WIDTH_PX)
    # A widened mark covers its neighbours, so it carries the colour itself.
    fill = theme.colour_at(slowdown) if half > 0.5 else "rgba(0,0,0,0)"
    return {
        "type": "rect",
        "x0": column - half,
        "x1": column + half,
        "y0": row - 0.5,
        "y1": row + 0.5,
        "line": {"color": theme.ink, "width": 2},
        "fillcolor": fill,
    }


def callout(
    grid: WorkerGrid,
    culprit: Worker,
    slowdown: float,
    *,
    num_others: int,
    row_px: int,
    has_values: bool,
    hosts: Hosts | None,
    theme: Theme,
) -> dict[str, Any]:
    """A label above the plot with the culprit's host, and a line from it to the cell.

    Of several culprits it is the slowest one's, and counts the others.
    """
    column, row = grid.cell(*culprit)
    host = (hosts or {}).get(culprit)
    more = f" and {words.whole(num_others)} more" if num_others else ""
    is_left = column < len(grid.columns) / 2
    name = words.markup(host) if host else words.worker(*culprit)
    # A line from the label would cross the values of the cells above.
    place = (
        {"y": -0.5, "yanchor": "bottom", "showarrow": False}
        if has_values and row > 0
        else {"y": row - 0.5, "showarrow": True, "ay": -(row * row_px + 16)}
    )
    return {
        "x": column,
        **place,
        "text": f"<b>{name}</b>, {words.ratio(slowdown)}{more}",
        "font": {"size": 12, "color": theme.ink},
        "arrowhead": 0,
        "arrowwidth": 1,
        "arrowcolor": theme.ink,
        "ax": 18 if is_left else -18,
        "xanchor": "left" if is_left else "right",
        "bgcolor": "rgba(0,0,0,0)",
        "borderpad": 1,
    }
