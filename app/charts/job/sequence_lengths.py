"""Time against lengths: does a micro-batch take as long as its sequences are?"""

from dataclasses import dataclass

import numpy as np

from app import formatting
from app.charts.base.figure import PlotlyFigure, axis, layout, meta, numbers, title
from app.charts.base.plotly import PlotlyAnnotation, PlotlyTrace, text_at
from app.charts.base.theme import Theme
from app.trace.window import Floats

# More dots hide each other.
MAX_DOTS = 2000
MAX_TABLE_ROWS = 200
_MILLION = 1e6
_HEIGHT_PX = 240
_AXIS_MARGIN = 1.06


@dataclass(frozen=True, slots=True)
class MicroBatchPairs:
    """One pair per micro-batch of a window on one stage; `y` is seconds.

    `x` is the sum of squared sequence lengths. Where no client sends them, `is_lengths` is False,
    `x` the forward and `y` the backward time.
    """

    x: Floats
    y: Floats
    is_lengths: bool
    stage: int


def lengths(pairs: MicroBatchPairs, *, theme: Theme) -> PlotlyFigure:
    """Dots of micro-batches with a straight line through them, and how well it fits (r²)."""
    x = pairs.x / _MILLION if pairs.is_lengths else pairs.x * 1e3
    y = pairs.y * 1e3
    line = least_squares(x, y)
    shown = np.unique(np.linspace(0, x.size - 1, min(x.size, MAX_DOTS)).round().astype(int))
    columns, x_title = ["forward, ms", "backward, ms"], "forward time of a micro-batch, ms"
    if pairs.is_lengths:
        columns = ["sum of squared lengths, millions", "forward, ms"]
        x_title = "sum of squared lengths in a micro-batch, millions"
    caption = f"The first {MAX_TABLE_ROWS} of {_counted(pairs)}."
    data = [_dots(x[shown], y[shown], pairs, theme)]
    notes: list[PlotlyAnnotation] = []
    if line is not None:
        data.append(_line(x, line, theme))
        notes.append(_note(pairs, line, theme))
    return PlotlyFigure(
        data=data,
        layout=layout(
            theme,
            height_px=_HEIGHT_PX,
            left_px=60,
            margin={"t": 12, "b": 44},
            xaxis=axis(
                theme,
                range=[0, _AXIS_MARGIN * float(x.max())],
                nticks=4,
                showgrid=True,
                title=title(x_title, theme),
            ),
            yaxis=axis(
                theme,
                range=[0, _AXIS_MARGIN * float(y.max())],
                nticks=5,
                showgrid=True,
                ticksuffix=" ms ",
            ),
            annotations=notes,
        ),
        meta=meta(
            _sentence(pairs, line),
            columns,
            [[f"{x[at]:.4g}", f"{y[at]:.4g}"] for at in shown[:MAX_TABLE_ROWS]],
            caption=caption if x.size > MAX_TABLE_ROWS else "",
        ),
    )


def least_squares(x: Floats, y: Floats) -> tuple[float, float, float] | None:
    """Offset and slope of the least-squares line, and r²; None where x or y does not vary."""
    if x.std() <= 0 or y.std() <= 0:
        return None
    slope, offset = np.polyfit(x, y, 1)
    return float(offset), float(slope), float(np.corrcoef(x, y)[0, 1] ** 2)


def _dots(x: Floats, y: Floats, pairs: MicroBatchPairs, theme: Theme) -> PlotlyTrace:
    hover_x = "%{x:.4g} million" if pairs.is_lengths else "forward %{x:.4g} ms"
    hover_y = "%{y:.4g} ms" if pairs.is_lengths else "backward %{y:.4g} ms"
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers(x),
        "y": numbers(y),
        "marker": {"size": 4, "color": theme.fwd, "opacity": 0.5},
        "hovertemplate": f"{hover_x}<br><b>{hover_y}</b><extra></extra>",
    }


def _line(x: Floats, line: tuple[float, float, float], theme: Theme) -> PlotlyTrace:
    offset, slope, _ = line
    ends = [0.0, _AXIS_MARGIN * float(x.max())]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": ends,
        "y": [offset + slope * end for end in ends],
        "line": {"color": theme.ink, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


def _note(
    pairs: MicroBatchPairs, line: tuple[float, float, float], theme: Theme
) -> PlotlyAnnotation:
    text = f"{_formula(pairs, line)}<br>r² {line[2]:.2f}, {_counted(pairs)}"
    corner: PlotlyAnnotation = {"xref": "paper", "yref": "paper", "x": 1, "y": 0, "yshift": 8}
    corner |= {"xanchor": "right", "yanchor": "bottom", "align": "right", "bgcolor": theme.surface}
    return text_at(corner, text, theme.ink)


def _formula(pairs: MicroBatchPairs, line: tuple[float, float, float]) -> str:
    offset, slope, _ = line
    before = f"{formatting.MINUS if offset < 0 else ''}{abs(offset):.3g} ms"
    sign, size = formatting.MINUS if slope < 0 else "+", f"{abs(slope):.3g}"
    per = f"{size} ms per million" if pairs.is_lengths else f"{size} {formatting.TIMES} forward"
    return f"{before} {sign} {per}"


def _counted(pairs: MicroBatchPairs) -> str:
    return f"{formatting.count(pairs.x.size)} micro-batches"


def _sentence(pairs: MicroBatchPairs, line: tuple[float, float, float] | None) -> str:
    time, cause = "backward time", "its forward time"
    if pairs.is_lengths:
        time, cause = "forward time", "the sum of squared lengths"
    if line is None:
        return f"On stage {pairs.stage} all micro-batches are alike: there is nothing to compare."
    return (
        f"On stage {pairs.stage} a micro-batch's {time} follows {cause} with r² {line[2]:.2f}, "
        f"over {_counted(pairs)}."
    )
