"""Horizontal bars with a value beside each, as shares of the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from app import formatting
from app.charts.base.figure import axis, label_width_px, layout, row_axis
from app.charts.base.plotly import PlotlyLayout, PlotlyTrace
from app.charts.base.theme import Theme

VALUE_PX = 56


@dataclass(frozen=True, slots=True)
class Bar:
    """One row; `share` is None when it is not measured."""

    label: str
    share: float | None
    colour: str


def bars_of(
    labels: Sequence[str], lengths: Sequence[float], theme: Theme, **parts: Unpack[PlotlyTrace]
) -> PlotlyTrace:
    """Horizontal bars, the first one on top, each with its `text` outside at 12 px."""
    return {
        "type": "bar",
        "orientation": "h",
        "x": lengths,
        "y": list(range(len(labels))),
        "width": 0.56,
        "customdata": labels,
        "textposition": "outside",
        "textfont": {"size": 12, "color": theme.ink},
        "cliponaxis": False,
        "constraintext": "none",
        **parts,
    }


def bar_trace(bars: Sequence[Bar], theme: Theme) -> PlotlyTrace:
    """Bars of shares of the loss."""
    return bars_of(
        [bar.label for bar in bars],
        [bar.share or 0.0 for bar in bars],
        theme,
        marker={"color": [bar.colour for bar in bars], "line": {"width": 0}},
        text=[formatting.measured(bar.share, formatting.percent) for bar in bars],
        hovertemplate="%{customdata}<br><b>%{text}</b> of the loss<extra></extra>",
    )


def small_bars_as_one(bars: Sequence[Bar], num_kept: int, noun: str, theme: Theme) -> list[Bar]:
    """The first bars, and all after them as one, where those are several."""
    rest = bars[num_kept:]
    if len(rest) < 2:
        return list(bars)
    share = sum(bar.share or 0.0 for bar in rest)
    return [*bars[:num_kept], Bar(f"{len(rest)} other {noun}", share, theme.line2)]


def bar_layout(
    bars: Sequence[Bar], theme: Theme, *, row_px: int, full_share: float
) -> PlotlyLayout:
    """The frame around them: labels at the left, room for the values, no grid and no ticks.

    The axis reaches at least to `full_share`, so that small shares look small.
    """
    shares = [bar.share or 0.0 for bar in bars]
    ends = min([0.0, *shares]), max([full_share, *shares])
    return rows_layout([bar.label for bar in bars], ends, theme, height_px=row_px * len(bars) + 20)


def rows_layout(
    names: Sequence[str], ends: tuple[float, float], theme: Theme, *, height_px: int
) -> PlotlyLayout:
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
        yaxis=row_axis(labels, theme)
        | {
            "tickfont": {"size": 12, "color": theme.ink2},
            "showline": False,
            "ticklabelstandoff": VALUE_PX if low < 0 else 0,
        },
    )
