"""Efficiency of many workers that wait for the slowest of them, by the tail of their times."""

import math
from collections.abc import Sequence
from typing import Any

from app import formatting
from app.charts.base.figure import Cell, PlotlyFigure, axis, layout, meta, numbers, title
from app.charts.base.theme import Theme
from app.synth.straggler_law import LogNormalTail, Tail

_LABEL_PX = 84
# From the lightest tail to the heaviest one.
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def straggler_law(tails: Sequence[Tail], workers: Sequence[int], *, theme: Theme) -> PlotlyFigure:
    """One line a tail over the number of workers, named where lines are apart.

    Those of heavy tails meet at the right end, so that they are named at the left one.
    """
    shares = [[tail.efficiency(each) for each in workers] for tail in tails]
    return PlotlyFigure(
        data=[
            _line(tail, workers, share, _DASHES[_place(tail, tails) % len(_DASHES)], theme)
            for tail, share in zip(tails, shares, strict=True)
        ],
        layout=layout(
            theme,
            height_px=480,
            left_px=56,
            margin={"r": _LABEL_PX, "b": 48},
            xaxis=axis(
                theme,
                type="log",
                dtick=1,
                tickformat=",",
                range=[math.log10(workers[0] / 3), math.log10(workers[-1])],
                title=title("workers", theme),
            ),
            yaxis=axis(
                theme,
                showgrid=True,
                range=[0, 1],
                tickformat=".0%",
                title=title("efficiency: mean / expected largest", theme),
            ),
        ),
        meta=meta(
            _sentence(tails[0], tails[-1], workers[-1]),
            ["workers", *(tail.label for tail in tails)],
            [_row(each, position, shares) for position, each in enumerate(workers)],
        ),
    )


def _place(tail: Tail, tails: Sequence[Tail]) -> int:
    """Position among the tails of its kind."""
    return [each for each in tails if type(each) is type(tail)].index(tail)


def _line(
    tail: Tail, workers: Sequence[int], shares: list[float], dash: str, theme: Theme
) -> dict[str, Any]:
    is_light, unnamed = isinstance(tail, LogNormalTail), [""] * (len(workers) - 1)
    colour = theme.fwd if is_light else theme.lost
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "name": tail.label,
        "x": numbers(workers),
        "y": numbers(shares),
        "text": [*unnamed, f" {tail.label}"] if is_light else [f"{tail.label} ", *unnamed],
        "textposition": "middle right" if is_light else "middle left",
        "textfont": {"size": 11, "color": theme.ink2},
        "cliponaxis": False,
        "line": {"color": colour, "width": 1.5, "dash": dash},
        "marker": {"size": 4, "color": colour},
        "hovertemplate": f"{tail.label}, %{{x:,}} workers<br><b>%{{y:.1%}}</b><extra></extra>",
    }


def _sentence(lightest: Tail, heaviest: Tail, num_workers: int) -> str:
    light, heavy = (
        formatting.percent(each.efficiency(num_workers)) for each in (lightest, heaviest)
    )
    return (
        f"Of the time of {formatting.count(num_workers)} workers that wait for the slowest one, "
        f"{light} is left with the lightest tail ({lightest.label}) and {heavy} with the "
        f"heaviest one ({heaviest.label})."
    )


def _row(num_workers: int, position: int, shares: list[list[float]]) -> list[Cell]:
    return [num_workers, *(formatting.percent(share[position]) for share in shares)]
