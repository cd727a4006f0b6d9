"""Horizontal bars with a value beside each: shares of the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.charts import words
from app.charts.figure import axis, label_width_px, layout
from app.charts.theme import Theme

_VALUE_PX = 56


@dataclass(frozen=True, slots=True)
class Bar:
    """One row; `share` is None when it is not measured."""

    label: str
    share: float | None
    colour: str


def bar_trace(bars: Sequence[Bar], theme: Theme) -> dict[str, Any]:
    """The bars, first one on top, each with its value outside at 12 px."""
    values = [words.NOT_MEASURED if b.share is None else words.percent(b.share) for b in bars]
    return {
        "type": "bar",
        "orientation": "h",
        "x": [0.0 if bar.share is None else bar.share for bar in bars],
        "y": list(range(len(bars))),
        "width": 0.56,
        "marker": {"color": [bar.colour for bar in bars], "line": {"width": 0}},
        "text": values,
        "customdata": [bar.label for bar in bars],
        "textposition": "outside",
        "textfont": {"size": 12, "color": theme.ink},
        "cliponaxis": False,
        "constraintext": "none",
        "hovertemplate": "%{customdata}<br><b>%{text}</b> of the loss<extra></extra>",
    }


def bar_layout(
    bars: Sequence[Bar], theme: Theme, *, row_px: int, full_share: float
) -> dict[str, Any]:
    """The frame around them: labels at the left, room for the values, no grid and no ticks.

    The axis reaches at least to `full_share`, so that small shares look small.
    """
    labels = [f"{bar.label}  " for bar in bars]
    shares = [bar.share or 0.0 for bar in bars]
    low, high = min([0.0, *shares]), max([full_share, *shares])
    return layout(
        theme,
        height_px=row_px * len(bars) + 20,
        left_px=label_width_px(labels) + (_VALUE_PX if low < 0 else 0),
        margin={"r": _VALUE_PX, "b": 12},
        xaxis=axis(
            theme,
            # Plotly hides the value of a bar that ends beyond the range by one rounding.
            range=[low - 1e-6, high + 1e-6],
            showline=False,
            showticklabels=False,
            zeroline=True,
            zerolinecolor=theme.line2,
        ),
        yaxis=axis(
            theme,
            range=[len(bars) - 0.5, -0.5],
            tickvals=list(range(len(bars))),
            ticktext=labels,
            tickfont={"size": 12, "color": theme.ink2},
            showline=False,
            ticklabelstandoff=_VALUE_PX if low < 0 else 0,
        ),
    )
