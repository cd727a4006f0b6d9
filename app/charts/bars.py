"""Horizontal bars with a value beside each: shares of the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app import words
from app.charts.figure import axis, label_width_px, layout
from app.charts.theme import Theme

VALUE_PX = 56


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
    shares = [bar.share or 0.0 for bar in bars]
    ends = min([0.0, *shares]), max([full_share, *shares])
    return rows_layout([bar.label for bar in bars], ends, theme, height_px=row_px * len(bars) + 20)


def rows_layout(
    names: Sequence[str], ends: tuple[float, float], theme: Theme, *, height_px: int, **parts: Any
) -> dict[str, Any]:
    """The frame around rows of bars that reach from one end to the other, the first row on top."""
    labels = [f"{name}  " for name in names]
    low, high = ends
    return layout(
        theme,
        height_px=height_px,
        left_px=label_width_px(labels) + (VALUE_PX if low < 0 else 0),
        margin={"r": VALUE_PX, "b": 12},
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
            range=[max(1, len(labels)) - 0.5, -0.5],
            tickvals=list(range(len(labels))),
            ticktext=labels,
            tickfont={"size": 12, "color": theme.ink2},
            showline=False,
            ticklabelstandoff=VALUE_PX if low < 0 else 0,
        ),
        **parts,
    )
