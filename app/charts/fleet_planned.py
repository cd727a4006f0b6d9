"""GPU-hours by day: what the recorded steps took, and would have taken without stragglers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from app import words
from app.charts.figure import Figure, axis, layout, meta, title
from app.charts.fleet_words import hours
from app.charts.theme import Theme

_HEIGHT_PX = 236
_FEWEST_DAYS = 7
_MOST_TICKS = 4


@dataclass(frozen=True, slots=True)
class Day:
    """GPU-hours of one day (UTC) that were recorded, and lost of these."""

    day: date
    hours: float
    lost_hours: float

    @property
    def planned_hours(self) -> float:
        """What the same steps would have taken without stragglers."""
        return self.hours - self.lost_hours


def fleet_planned(days: Sequence[Day], *, theme: Theme) -> Figure:
    """Bars of successive days, oldest first, of which some have recorded time."""
    first = next(at for at, day in enumerate(days) if day.hours > 0)
    shown = days[min(first, max(0, len(days) - _FEWEST_DAYS)) :]
    every = -(-len(shown) // _MOST_TICKS)
    places = list(range(len(shown) - 1, -1, -every))
    return Figure(
        data=[
            _bars("without stragglers", [day.planned_hours for day in shown], theme.sim, shown),
            _bars("lost", [day.lost_hours for day in shown], theme.lost, shown),
        ],
        layout=layout(
            theme,
            height_px=_HEIGHT_PX,
            left_px=56,
            margin={"t": 28, "b": 28, "r": 16},
            showlegend=True,
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom",
                    "traceorder": "normal", "itemclick": False, "itemdoubleclick": False},
            barmode="stack",
            bargap=0.4,
            xaxis=axis(theme, range=[-0.6, len(shown) - 0.4], tickvals=places,
                       ticktext=[f"{_date(shown[at])}" for at in places]),
            yaxis=axis(theme, showgrid=True, showline=False, rangemode="tozero", nticks=5,
                       tickformat="~s", title=title("GPU-hours", theme)),
        ),
        meta=meta(_sentence(shown), ["day (UTC)", "GPU-hours", "without stragglers", "lost"],
                  [[f"{day.day}", *(hours(each) for each in _figures(day))] for day in shown]),
    )  # fmt: skip


def _bars(name: str, values: list[float], colour: str, shown: Sequence[Day]) -> dict[str, Any]:
    told = [f"{_date(day)}: {_told(day)}" for day in shown]
    return {
        "type": "bar",
        "name": name,
        "x": list(range(len(shown))),
        "y": values,
        "marker": {"color": colour, "line": {"width": 0}},
        "customdata": told,
        "hovertemplate": f"%{{customdata}}<br><b>%{{y:,.1f}} GPU-h</b> {name}<extra></extra>",
    }


def _date(day: Day) -> str:
    return f"{day.day.day} {day.day:%b}"


def _told(day: Day) -> str:
    return f"{hours(day.hours)} GPU-h recorded"


def _figures(day: Day) -> tuple[float, float, float]:
    return day.hours, day.planned_hours, day.lost_hours


def _sentence(shown: Sequence[Day]) -> str:
    real, lost = sum(day.hours for day in shown), sum(day.lost_hours for day in shown)
    return (
        f"The recorded steps took {hours(real)} GPU-hours; without stragglers they would have "
        f"taken {hours(real - lost)}, which is {words.percent(lost / real)} less."
    )
