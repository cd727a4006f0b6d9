"""`paceline simulate --straggler-study`: the law by which synchronous jobs lose time."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from app import formatting
from app.charts.base.figure import PlotlyFigure, axis, layout, meta, numbers, title
from app.charts.base.plotly import PlotlyTrace
from app.charts.base.theme import LIGHT, Theme
from app.cli.html_report import chart_page
from app.cli.output import written_whole
from app.synth.straggler_law import TAILS, WORKERS, LogNormalTail, ParetoTail, Tail

_LABEL_PX = 84
# From the lightest tail to the heaviest one.
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def straggler_law(tails: Sequence[Tail], workers: Sequence[int], *, theme: Theme) -> PlotlyFigure:
    """One line a tail over the number of workers, named where lines are apart.

    Those of heavy tails meet at the right end, so that they are named at the left one.
    """
    shares = [[tail.efficiency(number) for number in workers] for tail in tails]
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
            [
                [number, *(formatting.percent(share[position]) for share in shares)]
                for position, number in enumerate(workers)
            ],
        ),
    )


def _place(tail: Tail, tails: Sequence[Tail]) -> int:
    """Position among the tails of its kind."""
    return [other for other in tails if type(other) is type(tail)].index(tail)


def _line(
    tail: Tail, workers: Sequence[int], shares: list[float], dash: str, theme: Theme
) -> PlotlyTrace:
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
        formatting.percent(extreme.efficiency(num_workers)) for extreme in (lightest, heaviest)
    )
    return (
        f"Of the time of {formatting.count(num_workers)} workers that wait for the slowest one, "
        f"{light} is left with the lightest tail ({lightest.label}) and {heavy} with the "
        f"heaviest one ({heaviest.label})."
    )


# Characters that the table takes, or a few more.
WIDTH = 80


def straggler_study() -> dict[str, Any]:
    """Efficiency by number of workers and heaviness of the tail, for JSON."""
    return {
        "schema": 1,
        "efficiency": "mean / expected largest",
        "workers": list(WORKERS),
        "tails": [_tail_fields(tail) for tail in TAILS],
    }


def study_table() -> Table:
    """The same for a terminal: a row per number of workers."""
    title = "efficiency = mean / expected largest, in %"
    table = Table(box=None, pad_edge=False, collapse_padding=True, title=title)
    table.add_column("\nworkers", justify="right", no_wrap=True)
    for tail in TAILS:
        table.add_column(tail.label.replace(" ", "\n"), justify="right", no_wrap=True)
    for num_workers in WORKERS:
        shares = (f"{100 * tail.efficiency(num_workers):.1f}" for tail in TAILS)
        table.add_row(f"{num_workers:,}", *shares)
    return table


def write_chart(path: Path) -> None:
    """Write the chart as a page that needs no network."""
    figure = straggler_law(TAILS, WORKERS, theme=LIGHT)
    with written_whole(path) as file:
        file.write(chart_page("The straggler law", figure, LIGHT).encode())


def _tail_fields(tail: Tail) -> dict[str, Any]:
    return {
        "kind": "log-normal" if isinstance(tail, LogNormalTail) else "pareto",
        "cv": tail.cv if isinstance(tail, LogNormalTail) else None,
        "shape": tail.shape if isinstance(tail, ParetoTail) else None,
        "efficiency": [tail.efficiency(number) for number in WORKERS],
    }
