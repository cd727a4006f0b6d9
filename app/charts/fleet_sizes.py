"""Slowdown against job size: do large jobs lose more?"""

import math
from collections.abc import Sequence
from typing import Any

from app import words
from app.charts.figure import Figure, axis, layout, meta, numbers, title
from app.charts.fleet_jobs import JobLoss, with_caption
from app.charts.theme import Theme

_HEIGHT_PX = 236
_MOST_POINTS = 2000
_MOST_ROWS = 100
_LEAST_TOP = 1.2
_MOST_TICKS = 5


def fleet_sizes(jobs: Sequence[JobLoss], limit: float, *, theme: Theme) -> Figure:
    """One mark a job that has figures, of one job at least; `limit` is where straggling begins."""
    shown = sorted(jobs, key=lambda job: -job.lost_hours)[:_MOST_POINTS]
    fine = [job for job in shown if job.slowdown < limit]
    slow = [job for job in shown if job.slowdown >= limit]
    sizes = [math.log10(job.num_gpus) for job in shown]
    ticks = _ticks(min(job.num_gpus for job in shown), max(job.num_gpus for job in shown))
    top = max(_LEAST_TOP, 1.03 * max(job.slowdown for job in shown))
    figure = Figure(
        data=[_marks(fine, "circle-open", theme.sim), _marks(slow, "triangle-up", theme.lost)],
        layout=layout(
            theme,
            height_px=_HEIGHT_PX,
            left_px=48,
            margin={"b": 44, "r": 16},
            xaxis=axis(theme, type="log", range=[min(sizes) - 0.2, max(sizes) + 0.2],
                       tickvals=ticks, ticktext=[words.whole(each) for each in ticks],
                       title=title("GPUs", theme)),
            yaxis=axis(theme, range=[0.99, top], showgrid=True, tickformat=".1f", nticks=6,
                       ticksuffix=words.TIMES, showline=False),
        ),
        meta=meta(_sentence(shown, slow, limit), ["job", "GPUs", "slowdown"],
                  [[job.name, job.num_gpus, words.ratio(job.slowdown)]
                   for job in sorted(shown, key=lambda job: -job.slowdown)[:_MOST_ROWS]]),
    )  # fmt: skip
    return with_caption(figure, _left_out(jobs))


def _ticks(least: int, most: int) -> list[int]:
    """Some powers of two, of which one is at most the least and one at least the most."""
    first, last = least.bit_length() - 1, (most - 1).bit_length()
    every = max(1, math.ceil((last - first) / (_MOST_TICKS - 1)))
    return [2**power for power in range(first, last + every, every)]


def _marks(jobs: Sequence[JobLoss], symbol: str, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers([job.num_gpus for job in jobs]),
        "y": numbers([job.slowdown for job in jobs]),
        "customdata": [words.markup(job.name, 60) for job in jobs],
        "marker": {
            "symbol": symbol,
            "size": 8,
            "color": colour,
            "line": {"width": 1.5, "color": colour},
        },
        "hovertemplate": "%{customdata}, %{x:,} GPUs<br><b>%{y:.2f}\u00d7</b><extra></extra>",
    }


def _sentence(shown: Sequence[JobLoss], slow: Sequence[JobLoss], limit: float) -> str:
    at_limit = f"{words.ratio(limit)} of {'its' if len(shown) == 1 else 'their'} ideal or more"
    if not slow:
        return f"None of {words.counted(len(shown), 'job')} ran at {at_limit}."
    worst = max(slow, key=lambda job: job.slowdown)
    return (
        f"{words.whole(len(slow))} of {words.counted(len(shown), 'job')} ran at {at_limit}; the "
        f"slowest, {words.contained(worst.name)} on {words.counted(worst.num_gpus, 'GPU')}, at "
        f"{words.ratio(worst.slowdown)}."
    )


def _left_out(jobs: Sequence[JobLoss]) -> str:
    return f"The {_MOST_ROWS} slowest jobs." if len(jobs) > _MOST_ROWS else ""
