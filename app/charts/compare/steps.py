"""Step times of two windows over each other, both from their first step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app import formatting
from app.charts.base.figure import Cell, PlotlyFigure, axis, layout, meta, numbers, title
from app.charts.base.plotly import PlotlyLine, PlotlyTrace, line_style
from app.charts.base.step_axis import MARKER_PX, MAX_MARKERS, time_axis
from app.charts.base.theme import Theme
from app.charts.compare.summary import Side
from app.result.window_result import WindowResult

_LEFT_PX = 56
MAX_POINTS = 600


@dataclass(frozen=True, slots=True)
class _StepTimes:
    """A side's step times, each place the mean of some successive steps.

    Shapes: all [places]; `at` counts recorded steps from 1.
    """

    at: Sequence[float]
    steps: Sequence[str]
    recorded_s: Sequence[float]
    ideal_s: Sequence[float]

    @classmethod
    def of(cls, result: WindowResult) -> "_StepTimes":
        """What a result has, thinned to what can be drawn."""
        steps, times = result.steps, result.step_time_s
        if not steps:
            return cls((), (), (), ())
        parts = np.array_split(np.arange(len(steps)), min(len(steps), MAX_POINTS))
        recorded_s, ideal_s = (
            np.asarray(step_s, float) for step_s in (times.recorded, times.ideal)
        )
        return cls(
            [float(part.mean()) + 1 for part in parts],
            [_steps_text(steps[part[0]], steps[part[-1]]) for part in parts],
            [float(recorded_s[part].mean()) for part in parts],
            [float(ideal_s[part].mean()) for part in parts],
        )


def compare_steps(a: Side, b: Side, *, theme: Theme) -> PlotlyFigure:
    """Recorded times of both, and what b's steps would take without stragglers."""
    run_a, run_b = _StepTimes.of(a.result), _StepTimes.of(b.result)
    num_places = max(len(a.result.steps), len(b.result.steps), 1)
    return PlotlyFigure(
        data=[
            _lost(run_b, theme),
            _line(run_b, run_b.ideal_s, "B without stragglers", line_style(theme.ok, 1.75, "dash")),
            _line(run_a, run_a.recorded_s, "A recorded", line_style(theme.sim, 1.75, "dot")),
            _line(run_b, run_b.recorded_s, "B recorded", line_style(theme.rec, 1.5, "solid")),
        ],
        layout=layout(
            theme,
            height_px=250,
            left_px=_LEFT_PX,
            margin={"b": 40},
            hovermode="x",
            xaxis=axis(
                theme,
                range=[0.5, num_places + 0.5],
                nticks=8,
                tickformat=",d",
                title=title("recorded steps of each side, from its first", theme),
            ),
            yaxis=time_axis([*run_a.recorded_s, *run_b.recorded_s, *run_b.ideal_s], theme),
        ),
        meta=meta(
            _sentence(a, b),
            ["side", "steps", "recorded, s", "without stragglers, s"],
            [*_rows("A", run_a), *_rows("B", run_b)],
        ),
    )


def _line(
    step_times: _StepTimes, times_s: Sequence[float], name: str, line: PlotlyLine
) -> PlotlyTrace:
    has_markers = len(times_s) <= MAX_MARKERS and name.endswith("recorded")
    symbol = "circle-open" if "A" in name else "circle"
    return {
        "type": "scatter",
        "mode": "lines+markers" if has_markers else "lines",
        "name": name,
        "x": numbers(step_times.at),
        "y": numbers(times_s),
        "customdata": list(step_times.steps),
        "line": line,
        "marker": {"size": MARKER_PX, "color": line["color"], "symbol": symbol},
        "hovertemplate": f"{name}, %{{customdata}}<br><b>%{{y:.3f}} s</b><extra></extra>",
    }


def _lost(step_times: _StepTimes, theme: Theme) -> PlotlyTrace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "B time lost",
        "x": numbers([*step_times.at, *reversed(step_times.at)]),
        "y": numbers([*step_times.recorded_s, *reversed(step_times.ideal_s)]),
        "fill": "toself",
        "fillcolor": theme.lost_area,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _steps_text(first: int, last: int) -> str:
    if first == last:
        return f"step {formatting.count(first)}"
    return f"steps {formatting.count(first)} to {formatting.count(last)}, their mean"


def _sentence(a: Side, b: Side) -> str:
    times = [(letter, side.mean_s("recorded")) for letter, side in (("A", a), ("B", b))]
    text = [f"{letter} takes {formatting.seconds(time_s)}" for letter, time_s in times if time_s]
    return f"A recorded step of {', one of '.join(text)}." if text else "No step was analysed."


def _rows(letter: str, step_times: _StepTimes) -> list[list[Cell]]:
    times = zip(step_times.steps, step_times.recorded_s, step_times.ideal_s, strict=True)
    return [[letter, steps, f"{recorded:.3f}", f"{ideal:.3f}"] for steps, recorded, ideal in times]
