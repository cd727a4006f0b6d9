"""The lines of the step-time chart: recorded, simulated and ideal, and the area of time lost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app import words
from app.charts.figure import numbers
from app.charts.step_axis import StepAxis
from app.charts.theme import Theme

# A line through few points hides which steps were recorded.
_MAX_MARKERS = 64
_MARKER_PX = 4

# A step without neighbours has no line: half the length of its dash and bar, in steps.
_LONE = 0.3

# The axis spans at least this share of a step, so that the loss of a healthy job looks small.
_MIN_HEIGHT = 0.15


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


def step_lines(
    points: Sequence[StepPoint], at: StepAxis, theme: Theme, *, is_low: bool
) -> list[dict[str, Any]]:
    """Traces of measured points, one for each step of the axis; if `is_low`, of recorded times."""
    recorded = _line(
        points, at, lambda p: p.recorded_s, "recorded", (theme.rec, 1.5, "solid"), is_wide=False
    ) | _markers(at, theme)
    if is_low:
        return [recorded]
    return [
        _lost(points, at, theme),
        _line(points, at, lambda p: p.ideal_s, "without stragglers", (theme.ok, 1.75, "dash")),
        _line(points, at, lambda p: p.simulated_s, "simulated", (theme.sim, 1, "dot")),
        recorded,
    ]


def time_range(points: Sequence[StepPoint], *, is_low: bool) -> list[float]:
    """The time axis's ends around all that is drawn, seconds."""
    drawn = [
        (p.recorded_s,) if is_low else (p.recorded_s, p.simulated_s, p.ideal_s) for p in points
    ]
    times = [time_s for each in drawn for time_s in each if time_s is not None]
    if not times:
        return [0.0, 1.0]
    low, high = min(times), max(times)
    height = max(high - low, _MIN_HEIGHT * high)
    return [low - 0.06 * height, low + 1.06 * height]


def mean_s(points: Sequence[StepPoint], read: Read) -> float:
    """Mean of one of the points' times, seconds."""
    return sum(read(point) or 0.0 for point in points) / len(points)


def off_by(points: Sequence[StepPoint]) -> float:
    """How far the simulated mean is from the recorded one, as a share of it (model, section 4)."""
    if not points:
        return 0.0
    recorded_s = mean_s(points, lambda point: point.recorded_s)
    simulated_s = mean_s(points, lambda point: point.simulated_s)
    return abs(simulated_s - recorded_s) / recorded_s if recorded_s > 0 else 0.0


def _line(
    points: Sequence[StepPoint],
    at: StepAxis,
    read: Read,
    name: str,
    style: tuple[str, float, str],
    *,
    is_wide: bool = True,
) -> dict[str, Any]:
    colour, width_px, dash = style
    x, y, step = [], [], []
    for run in at.runs:
        # An empty point after each run keeps the line from crossing the gap.
        places = list(_places(run, at) if is_wide else _middles(run, at))
        x += [place for _, place in places] + [at.position[run[-1]] + 0.5]
        y += [read(points[index]) for index, _ in places] + [None]
        step += [words.whole(at.steps[index]) for index, _ in places] + [""]
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


def _places(run: range, at: StepAxis) -> Iterator[tuple[int, float]]:
    """Index and place of a run's points; a lone one has two more at its sides."""
    if len(run) > 1:
        yield from _middles(run, at)
    else:
        yield from ((run[0], at.position[run[0]] + side) for side in (-_LONE, 0.0, _LONE))


def _middles(run: range, at: StepAxis) -> Iterator[tuple[int, float]]:
    return ((index, at.position[index]) for index in run)


def _markers(at: StepAxis, theme: Theme) -> dict[str, Any]:
    """A dot for each of few steps; of many only the lone ones have one, as no line shows them."""
    is_few = len(at.steps) <= _MAX_MARKERS
    if is_few or all(len(run) > 1 for run in at.runs):
        mode = "lines+markers" if is_few else "lines"
        return {"mode": mode, "marker": {"size": _MARKER_PX, "color": theme.rec}}
    sizes: list[int] = []
    for run in at.runs:
        sizes += [_MARKER_PX if len(run) == 1 else 0] * len(run) + [0]
    return {"mode": "lines+markers", "marker": {"size": sizes[:-1], "color": theme.rec}}


def _lost(points: Sequence[StepPoint], at: StepAxis, theme: Theme) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for run in at.runs:
        there = list(_places(run, at))
        back = list(reversed(there))
        x += [place for _, place in there + back] + [None]
        y += [points[index].recorded_s for index, _ in there]
        y += [points[index].ideal_s for index, _ in back] + [None]
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
