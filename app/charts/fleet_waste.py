"""How much jobs waste: which share of the fleet's jobs wastes so much of its GPU time, or less."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from app import words
from app.charts.figure import Cell, Figure, axis, layout, meta, numbers, title
from app.charts.fleet_jobs import JobLoss, with_caption
from app.charts.fleet_labels import LABEL_CHARS, SHORT_CHARS, Label, shortened
from app.charts.theme import Theme

_HEIGHT_PX = 236
_MOST_POINTS = 500
_MOST_NAMED = 3
_MOST_ROWS = 100
_LEAST_AXIS = 0.1


def fleet_waste(jobs: Sequence[JobLoss], limit: float, *, theme: Theme) -> Figure:
    """The distribution (CDF) over jobs with figures, one at least.

    Of those at or above the slowdown `limit`, the ones that lost most are named.
    """
    by_waste = sorted(jobs, key=lambda job: job.wasted)
    wasted = [100 * job.wasted for job in by_waste]
    end = max(100 * _LEAST_AXIS, 1.05 * wasted[-1])
    middle = quantile(wasted, 0.5)
    slow = [job for job in jobs if job.slowdown >= limit]
    figure = Figure(
        data=[_line(wasted, end, theme), *_named(slow, wasted, end, theme)],
        layout=layout(
            theme,
            height_px=_HEIGHT_PX,
            left_px=48,
            margin={"t": 24, "b": 44, "r": 16},
            xaxis=axis(theme, range=[0, end], title=title("GPU time wasted, %", theme), nticks=7,
                       showgrid=True),
            yaxis=axis(theme, range=[0, 114], tickvals=[0, 25, 50, 75, 100], showgrid=True,
                       title=title("Jobs at or below, %", theme), showline=False),
            shapes=_half(middle, theme),
            annotations=[_half_text(middle, theme)],
        ),
        meta=meta(_sentence(wasted), ["job", "GPUs", "GPU time wasted", "GPU-hours lost"],
                  _rows(by_waste)),
    )  # fmt: skip
    return with_caption(figure, _left_out(by_waste))


def quantile(ascending: Sequence[float], share: float) -> float:
    """The least value that this share of all are at or below."""
    return ascending[math.ceil(share * len(ascending)) - 1]


def _line(wasted: list[float], end: float, theme: Theme) -> dict[str, Any]:
    """A step up at each job, or at some hundreds of them."""
    stride = -(-len(wasted) // _MOST_POINTS)
    places = sorted({*range(0, len(wasted), stride), len(wasted) - 1})
    shares = [100 * (at + 1) / len(wasted) for at in places]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numbers([0.0, *(wasted[at] for at in places), end]),
        "y": numbers([0.0, *shares, 100.0]),
        "line": {"color": theme.rec, "width": 1.5, "shape": "hv"},
        "hovertemplate": "%{x:.1f} % wasted or less<br><b>%{y:.0f} %</b> of the jobs"
        "<extra></extra>",
    }


def _named(
    jobs: Sequence[JobLoss], wasted: list[float], end: float, theme: Theme
) -> list[dict[str, Any]]:
    """The jobs that lost most, as far as their names do not touch."""
    shown = _placed(jobs, wasted, end)
    if not shown:
        return []
    return [
        {
            "type": "scatter",
            "name": "named",
            "mode": "markers+text",
            "x": numbers([each.x for each in shown]),
            "y": numbers([each.y for each in shown]),
            "text": [shortened(each.job.name, LABEL_CHARS) for each in shown],
            # What a phone has room for: frontend/js/components/fit.js.
            "meta": {"short": [shortened(each.job.name, SHORT_CHARS) for each in shown]},
            "textposition": [each.place for each in shown],
            "textfont": {"size": 11, "color": theme.ink2},
            "cliponaxis": False,
            "marker": {"symbol": "triangle-up", "size": 9, "color": theme.lost},
            "customdata": [words.markup(each.job.name, 60) for each in shown],
            "hovertemplate": "%{customdata}<br><b>%{x:.1f} %</b> wasted<extra></extra>",
        }
    ]


def _placed(jobs: Sequence[JobLoss], wasted: list[float], end: float) -> list[Label]:
    """Where the names are; a job whose name would touch another one has none."""
    shown: list[Label] = []
    middle = quantile(wasted, 0.5)
    for job in sorted(jobs, key=lambda job: (-job.lost_hours, job.name)):
        x = 100 * job.wasted
        y = 100 * bisect_right(wasted, x) / len(wasted)
        if len(shown) == _MOST_NAMED:
            break
        free = [at for at in Label.beside(job, x, y, end) if not any(map(at.touches, shown))]
        if free and job.lost_hours > 0:
            shown.append(min(free, key=lambda at: at.crosses(middle, 50)))
    return shown


def _half(middle: float, theme: Theme) -> list[dict[str, Any]]:
    dotted = {"color": theme.ink3, "width": 1, "dash": "dot"}
    across = {"type": "line", "x0": 0, "x1": middle, "y0": 50, "y1": 50, "line": dotted}
    down = {"type": "line", "x0": middle, "x1": middle, "y0": 0, "y1": 50, "line": dotted}
    return [across, down]


def _half_text(middle: float, theme: Theme) -> dict[str, Any]:
    """Over the picture, where neither the line nor a name can be."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": 1,
        "text": f"Dotted: half of the jobs waste {words.percent(middle / 100)} or less",
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "font": {"size": 11, "color": theme.ink2},
    }


def _sentence(wasted: list[float]) -> str:
    middle, most = (words.percent(quantile(wasted, share) / 100) for share in (0.5, 0.9))
    if len(wasted) == 1:
        return f"The one job with figures wastes {middle} of its GPU time."
    return (
        f"Of {words.whole(len(wasted))} jobs with figures, half waste {middle} of their GPU time "
        f"or less, and nine in ten {most} or less."
    )


def _rows(by_waste: Sequence[JobLoss]) -> list[list[Cell]]:
    return [
        [job.name, job.num_gpus, words.percent(job.wasted), round(job.lost_hours, 1)]
        for job in reversed(by_waste[-_MOST_ROWS:])
    ]


def _left_out(by_waste: Sequence[JobLoss]) -> str:
    left = len(by_waste) - _MOST_ROWS
    return f"The {_MOST_ROWS} jobs that waste most." if left > 0 else ""
