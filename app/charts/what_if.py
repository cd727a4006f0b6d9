"""Steps as they were and as they would be: the room between is what a question wins back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app import words
from app.charts.figure import Cell, Figure, axis, layout, meta, numbers
from app.charts.step_axis import StepAxis
from app.charts.theme import Theme

_LEFT_PX = 56
# A line through few points hides which steps there are.
_MAX_MARKERS = 64
# The axis spans at least this share of a step, so that a small difference looks small.
_MIN_HEIGHT = 0.15

Seconds = Sequence[float]


@dataclass(frozen=True, slots=True)
class _Line:
    """How one of the four times is drawn."""

    name: str
    colour: str
    width_px: float
    dash: str


def what_if(steps: Sequence[int], step_time_s: Mapping[str, Seconds], *, theme: Theme) -> Figure:
    """Line chart of `recorded`, `simulated`, `what_if` and `ideal` seconds, by position in `steps`.

    Differences are against the simulated steps: neither they nor the others launch anything late.
    """
    at = StepAxis.over(steps)
    return Figure(
        data=_traces(at, step_time_s, theme),
        layout=layout(
            theme,
            height_px=260,
            left_px=_LEFT_PX,
            margin={"t": 24, "b": 28},
            hovermode="x",
            xaxis=at.x_axis(theme),
            yaxis=axis(theme, showgrid=True, nticks=5, ticksuffix=" s ", range=_range(step_time_s)),
            shapes=at.bands(theme),
            annotations=at.labels(theme),
        ),
        meta=meta(
            _sentence(step_time_s),
            [
                "step",
                "recorded, s",
                "simulated, s",
                "what if, s",
                "without stragglers, s",
                "speed-up",
            ],
            _rows(steps, step_time_s),
        ),
    )


def _traces(at: StepAxis, times: Mapping[str, Seconds], theme: Theme) -> list[dict[str, Any]]:
    simulated, asked, ideal = times["simulated"], times["what_if"], times["ideal"]
    lines = {
        "ideal": _Line("without stragglers", theme.ok, 1.75, "dash"),
        "simulated": _Line("simulated", theme.sim, 1, "dot"),
        "recorded": _Line("recorded", theme.rec, 1.5, "solid"),
        "what_if": _Line("what if", theme.accent, 2.25, "dashdot"),
    }
    return [
        _area(at, asked, ideal, "still lost", theme.lost_area),
        _area(at, simulated, asked, "won back", theme.ok_area),
        *(_line(at, times[kind], line) for kind, line in lines.items()),
    ]


def _area(at: StepAxis, upper: Seconds, lower: Seconds, name: str, colour: str) -> dict[str, Any]:
    """The room between two lines, where the upper one is above."""
    x: list[float | None] = []
    y: list[float | None] = []
    for run in at.runs:
        there, back = list(run), list(reversed(run))
        x += [at.position[index] for index in there + back] + [None]
        y += [max(upper[index], lower[index]) for index in there]
        y += [lower[index] for index in back] + [None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x[:-1],
        "y": y[:-1],
        "fill": "toself",
        "fillcolor": colour,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _line(at: StepAxis, times_s: Seconds, line: _Line) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    steps: list[str] = []
    for run in at.runs:
        # An empty point after each run keeps the line from crossing the gap.
        x += [*(at.position[index] for index in run), at.position[run[-1]] + 0.5]
        y += [*(times_s[index] for index in run), None]
        steps += [*(words.whole(at.steps[index]) for index in run), ""]
    has_markers = len(times_s) <= _MAX_MARKERS and line.width_px >= 1.5
    return {
        "type": "scatter",
        "mode": "lines+markers" if has_markers else "lines",
        "name": line.name,
        "x": numbers(x[:-1]),
        "y": numbers(y[:-1]),
        "customdata": steps[:-1],
        "connectgaps": False,
        "line": {"color": line.colour, "width": line.width_px, "dash": line.dash},
        "marker": {"size": 4, "color": line.colour},
        "hovertemplate": f"step %{{customdata}}, {line.name}<br><b>%{{y:.3f}} s</b><extra></extra>",
    }


def _range(step_time_s: Mapping[str, Seconds]) -> list[float]:
    times = [time_s for each in step_time_s.values() for time_s in each]
    low, high = min(times, default=0.0), max(times, default=1.0)
    height = max(high - low, _MIN_HEIGHT * high) or 1.0
    return [max(0.0, low - 0.06 * height), low + 1.06 * height]


def _sentence(step_time_s: Mapping[str, Seconds]) -> str:
    mean = {kind: sum(times) / max(1, len(times)) for kind, times in step_time_s.items()}
    return (
        f"A step takes {words.seconds(mean['what_if'])} with the changes and "
        f"{words.seconds(mean['simulated'])} without; without stragglers it would take "
        f"{words.seconds(mean['ideal'])}."
    )


def _rows(steps: Sequence[int], times: Mapping[str, Seconds]) -> list[list[Cell]]:
    kinds = ("recorded", "simulated", "what_if", "ideal")
    return [
        [step, *(f"{times[kind][at]:.3f}" for kind in kinds), _speed_up(times, at)]
        for at, step in enumerate(steps)
    ]


def _speed_up(times: Mapping[str, Seconds], at: int) -> Cell:
    asked_s = times["what_if"][at]
    return words.ratio(times["simulated"][at] / asked_s) if asked_s > 0 else words.NOT_MEASURED
