"""Charts with one mark a job: slowdown by job size, and the distribution of wasted GPU time.

Size asks whether large jobs lose more. The distribution (CDF) says which share of the jobs wastes
so much of its GPU time, or less; names stand beside the marks of the jobs that lost most, where
neither the line nor another name is.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from app import formatting
from app.charts.base.figure import PlotlyFigure, axis, layout, meta, numbers, title
from app.charts.base.plotly import (
    PlotlyAnnotation,
    PlotlyLine,
    PlotlyTrace,
    line_between,
    line_style,
    text_at,
)
from app.charts.base.theme import Theme


@dataclass(frozen=True, slots=True)
class JobLoss:
    """GPU-hours that a job on `num_gpus` GPUs lost, of those that it was recorded for."""

    name: str
    num_gpus: int
    lost_hours: float
    hours: float

    @property
    def wasted(self) -> float:
        """Share of its GPU time, 1 - 1/S."""
        return self.lost_hours / self.hours

    @property
    def slowdown(self) -> float:
        """S over that time."""
        return 1 / (1 - self.wasted)


def measured_jobs(jobs: Iterable[JobLoss]) -> list[JobLoss]:
    """Jobs with recorded time."""
    return [job for job in jobs if job.hours > 0]


LABEL_CHARS = 18
SHORT_CHARS = 10  # on a phone

# How large a letter is on the smallest chart that has the long names, and on a phone's.
_CHAR_PX = 6.2
_PLOT_PX, _PHONE_PLOT_PX = 400, 240
_MARK_SHARE = 0.03
_LABEL_HEIGHT = 12.0  # of a hundred


@dataclass(frozen=True, slots=True)
class Label:
    """A job's name at a mark (per cent both ways), with the room that both of them take.

    A rising line never passes below-right or above-left of its mark; `place` says which of the two
    the name takes, in Plotly's words.
    """

    job: JobLoss
    x: float
    y: float
    place: str
    from_x: float
    to_x: float
    from_y: float
    to_y: float

    @classmethod
    def beside(cls, job: JobLoss, x: float, y: float, end: float) -> list[Self]:
        """The places that a job's name has room at, of an axis up to `end`."""
        mark = _MARK_SHARE * end / 2
        long, short = min(len(job.name), LABEL_CHARS), min(len(job.name), SHORT_CHARS)
        width = _CHAR_PX * max(long / _PLOT_PX, short / _PHONE_PLOT_PX) * end
        under = y - _LABEL_HEIGHT, y + _LABEL_HEIGHT / 4
        over = y - _LABEL_HEIGHT / 4, y + _LABEL_HEIGHT
        right = cls(job, x, y, "bottom right", x - mark, x + mark + width, *under)
        left = cls(job, x, y, "top left", x - mark - width, x + mark, *over)
        has_right, has_left = right.to_x <= end and right.from_y >= 0, left.from_x >= 0
        return [right] * has_right + [left] * has_left

    def touches(self, other: "Label") -> bool:
        """Whether two labels overlap."""
        is_beside = self.to_x < other.from_x or other.to_x < self.from_x
        return not is_beside and self.from_y < other.to_y and other.from_y < self.to_y

    def crosses(self, x: float, y: float) -> bool:
        """Whether one of two lines from here to the axes would go through it."""
        is_through = self.from_x < x < self.to_x and self.from_y < y
        return is_through or (self.from_y < y < self.to_y and self.from_x < x)


def short_name(name: str, max_chars: int) -> str:
    """A job's name as markup: its beginning, which is what a list has it under."""
    short = name if len(name) <= max_chars else f"{name[: max_chars - 1]}\u2026"
    return formatting.chart_label(short, max_chars)


_HEIGHT_PX = 236
_MAX_SIZE_POINTS = 2000
_MAX_ROWS = 100
_MIN_TOP = 1.2
_MAX_TICKS = 5


def fleet_sizes(jobs: Sequence[JobLoss], limit: float, *, theme: Theme) -> PlotlyFigure:
    """One mark a job that has figures, of one job at least; `limit` is where straggling begins."""
    shown = sorted(jobs, key=lambda job: -job.lost_hours)[:_MAX_SIZE_POINTS]
    fine = [job for job in shown if job.slowdown < limit]
    slow = [job for job in shown if job.slowdown >= limit]
    sizes = [math.log10(job.num_gpus) for job in shown]
    ticks = _size_ticks(min(job.num_gpus for job in shown), max(job.num_gpus for job in shown))
    top = max(_MIN_TOP, 1.03 * max(job.slowdown for job in shown))
    return PlotlyFigure(
        data=[_marks(fine, "circle-open", theme.sim), _marks(slow, "triangle-up", theme.lost)],
        layout=layout(
            theme,
            height_px=_HEIGHT_PX,
            left_px=48,
            margin={"b": 44, "r": 16},
            xaxis=axis(theme, type="log", range=[min(sizes) - 0.2, max(sizes) + 0.2],
                       tickvals=ticks, ticktext=[formatting.count(tick) for tick in ticks],
                       title=title("GPUs", theme)),
            yaxis=axis(theme, range=[0.99, top], showgrid=True, tickformat=".1f", nticks=6,
                       ticksuffix=formatting.TIMES, showline=False),
        ),
        meta=meta(_size_sentence(shown, slow, limit), ["job", "GPUs", "slowdown"],
                  [[job.name, job.num_gpus, formatting.ratio(job.slowdown)]
                   for job in sorted(shown, key=lambda job: -job.slowdown)[:_MAX_ROWS]],
                  caption=f"The {_MAX_ROWS} slowest jobs." if len(jobs) > _MAX_ROWS else ""),
    )  # fmt: skip


def _size_ticks(least: int, most: int) -> list[int]:
    """Some powers of two, of which one is at most the least and one at least the most."""
    first, last = least.bit_length() - 1, (most - 1).bit_length()
    every = max(1, math.ceil((last - first) / (_MAX_TICKS - 1)))
    return [2**power for power in range(first, last + every, every)]


def _marks(jobs: Sequence[JobLoss], symbol: str, colour: str) -> PlotlyTrace:
    edge: PlotlyLine = {"width": 1.5, "color": colour}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers([job.num_gpus for job in jobs]),
        "y": numbers([job.slowdown for job in jobs]),
        "customdata": [formatting.chart_label(job.name, 60) for job in jobs],
        "marker": {"symbol": symbol, "size": 8, "color": colour, "line": edge},
        "hovertemplate": "%{customdata}, %{x:,} GPUs<br><b>%{y:.2f}\u00d7</b><extra></extra>",
    }


def _size_sentence(shown: Sequence[JobLoss], slow: Sequence[JobLoss], limit: float) -> str:
    at_limit = f"{formatting.ratio(limit)} of {'its' if len(shown) == 1 else 'their'} ideal or more"
    if not slow:
        return f"None of {formatting.plural(len(shown), 'job')} ran at {at_limit}."
    worst = max(slow, key=lambda job: job.slowdown)
    gpus = formatting.plural(worst.num_gpus, "GPU")
    return (
        f"{formatting.count(len(slow))} of {formatting.plural(len(shown), 'job')} ran at "
        f"{at_limit}; the slowest, {formatting.bidi_isolated(worst.name)} on {gpus}, at "
        f"{formatting.ratio(worst.slowdown)}."
    )


_MAX_CURVE_POINTS = 500
_MAX_NAMED = 3
_MIN_AXIS = 0.1


def fleet_waste(jobs: Sequence[JobLoss], limit: float, *, theme: Theme) -> PlotlyFigure:
    """The distribution (CDF) over jobs with figures, one at least.

    Of those at or above the slowdown `limit`, the ones that lost most are named.
    """
    by_waste = sorted(jobs, key=lambda job: job.wasted)
    wasted = [100 * job.wasted for job in by_waste]
    end = max(100 * _MIN_AXIS, 1.05 * wasted[-1])
    middle = quantile(wasted, 0.5)
    slow = [job for job in jobs if job.slowdown >= limit]
    half = f"Dotted: half of the jobs waste {formatting.percent(middle / 100)} or less"
    most = f"The {_MAX_ROWS} jobs that waste most."
    dotted = line_style(theme.ink3, 1, "dot")
    # Above the plot, clear of line and names.
    corner: PlotlyAnnotation = {"xref": "paper", "yref": "paper", "x": 0, "y": 1}
    corner |= {"xanchor": "left", "yanchor": "bottom"}
    return PlotlyFigure(
        data=[_waste_curve(wasted, end, theme), *_named_marks(slow, wasted, end, theme)],
        layout=layout(
            theme,
            height_px=_HEIGHT_PX,
            left_px=48,
            margin={"t": 24, "b": 44, "r": 16},
            xaxis=axis(theme, range=[0, end], title=title("GPU time wasted, %", theme), nticks=7,
                       showgrid=True),
            yaxis=axis(theme, range=[0, 114], tickvals=[0, 25, 50, 75, 100], showgrid=True,
                       title=title("Jobs at or below, %", theme), showline=False),
            shapes=[line_between((0, middle), (50, 50), dotted),
                    line_between((middle, middle), (0, 50), dotted)],
            annotations=[text_at(corner, half, theme.ink2)],
        ),
        meta=meta(_waste_sentence(wasted), ["job", "GPUs", "GPU time wasted", "GPU-hours lost"],
                  [[job.name, job.num_gpus, formatting.percent(job.wasted),
                    round(job.lost_hours, 1)] for job in reversed(by_waste[-_MAX_ROWS:])],
                  caption=most if len(jobs) > _MAX_ROWS else ""),
    )  # fmt: skip


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    return ascending[math.ceil(share * len(ascending)) - 1]


def _waste_curve(wasted: list[float], end: float, theme: Theme) -> PlotlyTrace:
    """A step up at each job, or at some hundreds of them."""
    stride = -(-len(wasted) // _MAX_CURVE_POINTS)
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


def _named_marks(
    jobs: Sequence[JobLoss], wasted: list[float], end: float, theme: Theme
) -> list[PlotlyTrace]:
    """The jobs that lost most, as far as their names do not touch."""
    shown = _label_positions(jobs, wasted, end)
    if not shown:
        return []
    return [
        {
            "type": "scatter",
            "name": "named",
            "mode": "markers+text",
            "x": numbers([label.x for label in shown]),
            "y": numbers([label.y for label in shown]),
            "text": [short_name(label.job.name, LABEL_CHARS) for label in shown],
            # What a phone has room for: frontend/js/components/chart-card.js.
            "meta": {"short": [short_name(label.job.name, SHORT_CHARS) for label in shown]},
            "textposition": [label.place for label in shown],
            "textfont": {"size": 11, "color": theme.ink2},
            "cliponaxis": False,
            "marker": {"symbol": "triangle-up", "size": 9, "color": theme.lost},
            "customdata": [formatting.chart_label(label.job.name, 60) for label in shown],
            "hovertemplate": "%{customdata}<br><b>%{x:.1f} %</b> wasted<extra></extra>",
        }
    ]


def _label_positions(jobs: Sequence[JobLoss], wasted: list[float], end: float) -> list[Label]:
    """Where the names are; a job whose name would touch another one has none."""
    shown: list[Label] = []
    middle = quantile(wasted, 0.5)
    for job in sorted(jobs, key=lambda job: (-job.lost_hours, job.name)):
        x = 100 * job.wasted
        y = 100 * bisect_right(wasted, x) / len(wasted)
        if len(shown) == _MAX_NAMED:
            break
        free = [at for at in Label.beside(job, x, y, end) if not any(map(at.touches, shown))]
        if free and job.lost_hours > 0:
            shown.append(min(free, key=lambda at: at.crosses(middle, 50)))
    return shown


def _waste_sentence(wasted: list[float]) -> str:
    middle, most = (formatting.percent(quantile(wasted, share) / 100) for share in (0.5, 0.9))
    if len(wasted) == 1:
        return f"The one job with figures wastes {middle} of its GPU time."
    return (
        f"Of {formatting.count(len(wasted))} jobs with figures, half waste {middle} of their GPU "
        f"time or less, and nine in ten {most} or less."
    )
