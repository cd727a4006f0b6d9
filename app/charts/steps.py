"""Step times: recorded, simulated and without stragglers; the area between is the time lost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from app.charts import words
from app.charts.figure import Cell, Figure, axis, layout, meta, numbers
from app.charts.step_axis import StepAxis, band
from app.charts.theme import Theme

# Left edge of this chart and of the worker-by-step chart under it.
LEFT_PX = 148

# A line through few points hides which steps were recorded.
_MAX_MARKERS = 64

# The axis spans at least this share of a step, so that the loss of a healthy job looks small.
_MIN_HEIGHT = 0.15

# Share of the axis that shows that nothing has arrived since the last step.
_SILENT_SHARE = 0.15
_BAND_CHARS = 9  # of 6 px each


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One step's times; without figures when it was skipped."""

    step: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    skipped_reason: str | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the step has all its figures."""
        return None not in (self.recorded_s, self.simulated_s, self.ideal_s)


Read = Callable[[StepPoint], float | None]


def steps(points: Sequence[StepPoint], *, theme: Theme, silent_since: str | None = None) -> Figure:
    """Line chart of step times on a broken axis; `silent_since` labels a band after the end."""
    measured = [point for point in points if point.is_measured]
    step_axis = StepAxis.over([point.step for point in measured])
    notes = step_axis.labels(theme)
    shapes = step_axis.bands(theme)
    x_axis = step_axis.x_axis(theme)
    if silent_since:
        end = step_axis.end * (1 + _SILENT_SHARE) + 1
        shapes.append(band(step_axis.end, end, theme))
        notes.append(_inside(end, _narrow(silent_since), theme))
        x_axis["range"] = [-0.5, end]
    return Figure(
        data=_traces(measured, step_axis, theme),
        layout=layout(
            theme,
            height_px=210,
            left_px=LEFT_PX,
            margin={"t": 24, "b": 24},
            hovermode="x",
            xaxis=x_axis,
            yaxis=axis(
                theme, showgrid=True, nticks=5, ticksuffix=" s ", range=_time_range(measured)
            ),
            shapes=shapes,
            annotations=notes,
        ),
        meta=meta(
            _sentence(measured),
            ["step", "recorded, s", "simulated, s", "without stragglers, s", "skipped because"],
            [_row(point) for point in points],
        ),
    )


def _traces(points: Sequence[StepPoint], at: StepAxis, theme: Theme) -> list[dict[str, Any]]:
    mode = "lines+markers" if len(points) <= _MAX_MARKERS else "lines"
    return [
        _lost(points, at, theme),
        _line(points, at, lambda p: p.ideal_s, "without stragglers", (theme.ok, 1.75, "dash")),
        _line(points, at, lambda p: p.simulated_s, "simulated", (theme.sim, 1, "dot")),
        _line(points, at, lambda p: p.recorded_s, "recorded", (theme.rec, 1.5, "solid"))
        | {"mode": mode, "marker": {"size": 4, "color": theme.rec}},
    ]


def _line(
    points: Sequence[StepPoint],
    at: StepAxis,
    read: Read,
    name: str,
    style: tuple[str, float, str],
) -> dict[str, Any]:
    colour, width_px, dash = style
    x, y, step = [], [], []
    for run in at.runs:
        # An empty point after each run keeps the line from crossing the gap.
        x += [at.position[index] for index in run] + [at.position[run[-1]] + 0.5]
        y += [read(points[index]) for index in run] + [None]
        step += [words.whole(at.steps[index]) for index in run] + [""]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": numbers(x[:-1]),
        "y": numbers(y[:-1]),
        "customdata": step[:-1],
        "connectgaps": False,
        "line": {"color": colour, "width": width_px, "dash": dash},
        "hovertemplate": f"step %{{customdata}}, {name}<br><b>%{{y:.3f}} s</b><extra></extra>",
    }


def _lost(points: Sequence[StepPoint], at: StepAxis, theme: Theme) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for run in at.runs:
        there, back = list(run), list(reversed(run))
        x += [at.position[index] for index in there + back] + [None]
        y += [points[index].recorded_s for index in there]
        y += [points[index].ideal_s for index in back] + [None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "time lost",
        "x": x[:-1],
        "y": y[:-1],
        "fill": "toself",
        "fillcolor": theme.lost_area,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _time_range(measured: Sequence[StepPoint]) -> list[float]:
    times = [t for p in measured for t in (p.recorded_s, p.simulated_s, p.ideal_s) if t is not None]
    if not times:
        return [0.0, 1.0]
    low, high = min(times), max(times)
    height = max(high - low, _MIN_HEIGHT * high)
    return [low - 0.06 * height, low + 1.06 * height]


def _narrow(text: str) -> str:
    """A text in lines so short that they fit into the band on a phone."""
    return "<br>".join(wrap(text, _BAND_CHARS))


def _inside(right: float, text: str, theme: Theme) -> dict[str, Any]:
    return {
        "x": right,
        "xanchor": "right",
        "yref": "paper",
        "y": 0.5,
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": theme.ink2},
    }


def _sentence(measured: Sequence[StepPoint]) -> str:
    if not measured:
        return "No complete step has been analysed yet."
    recorded = _mean(measured, lambda point: point.recorded_s)
    ideal = _mean(measured, lambda point: point.ideal_s)
    return (
        f"Over {words.counted(len(measured), 'step')}, from {words.whole(measured[0].step)} to "
        f"{words.whole(measured[-1].step)}, a step takes {words.seconds(recorded)}; without "
        f"stragglers it would take {words.seconds(ideal)}."
    )


def _mean(points: Sequence[StepPoint], read: Read) -> float:
    return sum(read(point) or 0.0 for point in points) / len(points)


def _row(point: StepPoint) -> list[Cell]:
    times = (point.recorded_s, point.simulated_s, point.ideal_s)
    figures: list[Cell] = [
        words.NOT_MEASURED if time_s is None else f"{time_s:.3f}" for time_s in times
    ]
    return [point.step, *figures, point.skipped_reason]
