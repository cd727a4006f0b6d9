"""GPU-hours of the fleet: by day with and without stragglers, and lost ones by cause and type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from app import formatting
from app.charts.base.bars import Bar, bar_layout, bar_trace, small_bars_as_one
from app.charts.base.figure import Cell, PlotlyFigure, axis, layout, meta, title
from app.charts.base.plotly import PlotlyTrace
from app.charts.base.theme import Theme
from app.result.causes import NOT_EXPLAINED, cause_name

_HEIGHT_PX = 236
_MIN_DAYS = 7
_MAX_TICKS = 4


@dataclass(frozen=True, slots=True)
class FleetDay:
    """GPU-hours of one day (UTC) that were recorded, and lost of these."""

    day: date
    hours: float
    lost_hours: float

    @property
    def planned_hours(self) -> float:
        """What the same steps would have taken without stragglers."""
        return self.hours - self.lost_hours


def fleet_planned(days: Sequence[FleetDay], *, theme: Theme) -> PlotlyFigure:
    """Bars of successive days, oldest first, of which some have recorded time."""
    first = next(at for at, day in enumerate(days) if day.hours > 0)
    shown = days[min(first, max(0, len(days) - _MIN_DAYS)) :]
    every = -(-len(shown) // _MAX_TICKS)
    places = list(range(len(shown) - 1, -1, -every))
    return PlotlyFigure(
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
                  [_row(day) for day in shown]),
    )  # fmt: skip


def _bars(name: str, values: list[float], colour: str, shown: Sequence[FleetDay]) -> PlotlyTrace:
    return {
        "type": "bar",
        "name": name,
        "x": list(range(len(shown))),
        "y": values,
        "marker": {"color": colour, "line": {"width": 0}},
        "customdata": [
            f"{_date(day)}: {formatting.hour_count(day.hours)} GPU-h recorded" for day in shown
        ],
        "hovertemplate": f"%{{customdata}}<br><b>%{{y:,.1f}} GPU-h</b> {name}<extra></extra>",
    }


def _row(day: FleetDay) -> list[Cell]:
    hours = (day.hours, day.planned_hours, day.lost_hours)
    return [f"{day.day}", *map(formatting.hour_count, hours)]


def _date(day: FleetDay) -> str:
    return f"{day.day.day} {day.day:%b}"


def _sentence(shown: Sequence[FleetDay]) -> str:
    real, lost = sum(day.hours for day in shown), sum(day.lost_hours for day in shown)
    return (
        f"The recorded steps took {formatting.hour_count(real)} GPU-hours; without stragglers "
        f"they would have taken {formatting.hour_count(real - lost)}, "
        f"which is {formatting.percent(lost / real)} less."
    )


_MAX_BARS = 7
_FULL_SHARE = 0.4
_LABEL_CHARS = 26

_OVERLAP = "Causes overlap, so shares need not add up to 100 %."


def fleet_causes(
    lost_hours: Mapping[str, float], total_hours: float, *, theme: Theme
) -> PlotlyFigure:
    """Bars of the GPU-hours lost by cause, the largest on top and what is not explained last.

    `lost_hours` is by cause, `total_hours` all that was lost; it is above zero.
    """
    named = {cause: lost for cause, lost in lost_hours.items() if cause != NOT_EXPLAINED}
    table = [(_cause_label(cause), lost) for cause, lost in _largest_first(named)]
    bars = [Bar(label, lost / total_hours, theme.lost) for label, lost in table]
    text = "No cause was found for what was lost."
    if bars:
        text = f"{_leading_sentence(bars[0], 'costs', total_hours)} {_OVERLAP}"
    unexplained = lost_hours.get(NOT_EXPLAINED, 0.0)
    drawn = small_bars_as_one(bars, _MAX_BARS - 1 - bool(unexplained), "causes", theme)
    if unexplained:
        label = _cause_label(NOT_EXPLAINED)
        table.append((label, unexplained))
        drawn.append(Bar(label, unexplained / total_hours, theme.line2))
    return _figure(drawn, text, "cause", table, total_hours, theme)


def fleet_optypes(lost_hours: Mapping[str, float], *, theme: Theme) -> PlotlyFigure:
    """Bars of the GPU-hours lost by operation type, the largest on top; some are above zero."""
    total = sum(lost_hours.values())
    table = [(formatting.optype_label(name), lost) for name, lost in _largest_first(lost_hours)]
    bars = [
        Bar(formatting.chart_label(name, _LABEL_CHARS), lost / total, theme.lost)
        for name, lost in table
    ]
    drawn = small_bars_as_one(bars, _MAX_BARS - 1, "types", theme)
    text = _leading_sentence(bars[0], "carries", total)
    return _figure(drawn, text, "operation type", table, total, theme)


def _figure(
    bars: list[Bar],
    text: str,
    noun: str,
    table: Sequence[tuple[str, float]],
    total: float,
    theme: Theme,
) -> PlotlyFigure:
    frame = bar_layout(bars, theme, row_px=1, full_share=_FULL_SHARE)
    # As high with few bars as with many, so that nothing below it moves.
    frame["height"] = _HEIGHT_PX
    frame["yaxis"]["range"] = [_MAX_BARS - 0.5, -0.5]
    rows: list[list[Cell]] = [
        [name, formatting.hour_count(lost), formatting.percent(lost / total)]
        for name, lost in table
    ]
    return PlotlyFigure(
        data=[bar_trace(bars, theme)],
        layout=frame,
        meta=meta(text, [noun, "GPU-hours lost", "share of the loss"], rows),
    )


def _leading_sentence(bar: Bar, verb: str, total: float) -> str:
    share, hours = formatting.percent(bar.share or 0.0), formatting.hour_count(total)
    return f"{bar.label} {verb} most: {share} of the {hours} GPU-hours that were lost."


def _largest_first(lost: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(lost.items(), key=lambda pair: (-pair[1], pair[0]))


def _cause_label(name: str) -> str:
    return formatting.upper_first(cause_name(name))
