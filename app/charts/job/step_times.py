"""Step times: recorded, simulated and without stragglers; the area between is the time lost.

The lines lie on the step axis, broken at gaps. Where the simulated steps are too far from the
recorded ones, only the recorded times are drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from textwrap import wrap

from app import formatting
from app.charts.base.figure import Cell, ItemsByAxis, PlotlyFigure, layout, meta
from app.charts.base.plotly import PlotlyAnnotation, PlotlyMargin, PlotlyTrace, line_style, text_at
from app.charts.base.step_axis import (
    MARKER_PX,
    MAX_MARKERS,
    LinePoints,
    StepAxis,
    StepEvent,
    area_over_steps,
    band,
    event_labels,
    event_lines,
    line_over_steps,
    points_of,
    time_axis,
)
from app.charts.base.theme import Theme
from app.result.figures import MAX_DISCREPANCY

# A step without neighbours has no line: half the length of its dash and bar, in steps.
_LONE_STEP_HALF_WIDTH = 0.3


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One step's times; without figures when it was skipped."""

    step: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    skipped_reason: str | None = None
    num_steps: int = 1  # that the times are means of

    @property
    def is_measured(self) -> bool:
        """Whether the step has all its figures."""
        return None not in (self.recorded_s, self.simulated_s, self.ideal_s)


TimeOfPoint = Callable[[StepPoint], float | None]


def step_lines(
    points: Sequence[StepPoint], at: StepAxis, theme: Theme, *, is_low: bool
) -> list[PlotlyTrace]:
    """Traces of measured points, one per step of the axis; if `is_low`, of recorded times."""
    recorded_s = [point.recorded_s or 0.0 for point in points]
    recorded = line_over_steps(
        at, recorded_s, "recorded", line_style(theme.rec, 1.5, "solid"), " s"
    ) | _markers(at, theme)
    if is_low:
        return [recorded]
    ideal_s = [point.ideal_s or 0.0 for point in points]
    simulated_s = [point.simulated_s for point in points]
    # A step that is faster than its ideal loses nothing.
    upper_s = [*map(max, recorded_s, ideal_s)]
    ideal_line, simulated_line = line_style(theme.ok, 1.75, "dash"), line_style(theme.sim, 1, "dot")
    ends = _points_with_lone_ends
    return [
        area_over_steps(at, upper_s, ideal_s, "time lost", theme.lost_area, ends),
        line_over_steps(at, ideal_s, "without stragglers", ideal_line, " s", ends),
        line_over_steps(at, simulated_s, "simulated", simulated_line, " s", ends),
        recorded,
    ]


def _times_s(points: Sequence[StepPoint], *, is_low: bool) -> list[float]:
    """All times that are drawn, seconds."""
    drawn = [
        (p.recorded_s,) if is_low else (p.recorded_s, p.simulated_s, p.ideal_s) for p in points
    ]
    return [time_s for step_times_s in drawn for time_s in step_times_s if time_s is not None]


def mean_s(points: Sequence[StepPoint], read: TimeOfPoint) -> float:
    """Mean of one of the times over all steps, seconds."""
    total_s = sum((read(point) or 0.0) * point.num_steps for point in points)
    return total_s / sum(point.num_steps for point in points)


def discrepancy_of(points: Sequence[StepPoint]) -> float:
    """How far the simulated mean is from the recorded one, as a share of it (docs/glossary.md)."""
    if not points:
        return 0.0
    recorded_s = mean_s(points, lambda point: point.recorded_s)
    simulated_s = mean_s(points, lambda point: point.simulated_s)
    return abs(simulated_s - recorded_s) / recorded_s if recorded_s > 0 else 0.0


def _points_with_lone_ends(run: range, at: StepAxis) -> LinePoints:
    """A run's points; a lone one has two more at its sides."""
    if len(run) > 1:
        return points_of(run, at)
    half = _LONE_STEP_HALF_WIDTH
    return [(run[0], at.position[run[0]] + side) for side in (-half, 0.0, half)]


def _markers(at: StepAxis, theme: Theme) -> PlotlyTrace:
    """A dot on every one of few steps; of many only on lone ones, which no line shows."""
    is_few = len(at.steps) <= MAX_MARKERS
    has_lone_steps = any(len(run) == 1 for run in at.runs)
    size: int | list[int] = MARKER_PX
    if has_lone_steps and not is_few:
        sizes = ([MARKER_PX * (len(run) == 1)] * len(run) + [0] for run in at.runs)
        size = list(chain.from_iterable(sizes))[:-1]
    mode = "lines+markers" if is_few or has_lone_steps else "lines"
    return {"mode": mode, "marker": {"size": size, "color": theme.rec}}


# Left edge of this chart and of the worker-by-step chart under it.
LEFT_PX = 148
# Right of the plot, where the chart under it has bars there.
RIGHT_PX = 100

# Share of the axis that shows that nothing has arrived since the last step.
_SILENT_SHARE = 0.4


def step_times(
    points: Sequence[StepPoint],
    *,
    theme: Theme,
    at: StepAxis | None = None,
    silent_since: str | None = None,
    has_bars: bool = False,
    events: Sequence[StepEvent] = (),
    is_part: bool = False,
) -> PlotlyFigure:
    """Line chart of step times on a broken axis; `silent_since` labels a band after the end.

    `at` has the steps to draw, where there are too many for all of them. `has_bars` leaves the
    room at the right that the chart of dp ranks needs. Where the simulated steps are too far off,
    only the recorded ones are drawn, and the note says why. `is_part` tells that there are more
    steps before these, too many to be read.
    """
    measured = [point for point in points if point.is_measured]
    step_axis = at or StepAxis.over([point.step for point in measured])
    by_step = {point.step: point for point in measured}
    drawn, shown = [by_step[step] for step in step_axis.steps], set(step_axis.steps)
    off = discrepancy_of(measured)
    is_low = off > MAX_DISCREPANCY
    notes = event_labels(events, step_axis, theme)
    shapes = [*step_axis.bands(theme), *event_lines(events, step_axis, theme)]
    x_axis = step_axis.x_axis(theme)
    times_s = _times_s(drawn, is_low=is_low)
    y_axis = time_axis(times_s, theme)
    if not times_s:
        y_axis["range"] = [0.0, 1.0]
    if silent_since:
        end = step_axis.end * (1 + _SILENT_SHARE) + 1
        shapes.append(band(step_axis.end, end, theme))
        middle = (step_axis.end + end) / 2
        inside: PlotlyAnnotation = {"x": middle, "xanchor": "center", "yref": "paper", "y": 0.5}
        notes.append(text_at(inside, _wrapped(silent_since), theme.ink2))
        x_axis["range"] = [-0.5, end]
    margin: PlotlyMargin = {"t": 24, "b": 24 + step_axis.clock_px}
    if has_bars:
        margin["r"] = RIGHT_PX
    notes_under = [*_notes(len(points), step_axis, is_part=is_part), *_low_fidelity_note(off)]
    return PlotlyFigure(
        data=step_lines(drawn, step_axis, theme, is_low=is_low),
        layout=layout(
            theme,
            height_px=210 + step_axis.clock_px,
            left_px=LEFT_PX,
            margin=margin,
            hovermode="x",
            xaxis=x_axis,
            yaxis=y_axis,
            shapes=shapes,
            annotations=notes,
        ),
        meta=meta(
            _sentence(measured, is_low=is_low),
            ["step", "recorded, s", "simulated, s", "without stragglers, s", "skipped because"],
            [
                _row(point, is_low=is_low)
                for point in points
                if point.step in shown or not point.is_measured
            ],
            note=" ".join(notes_under),
            places=ItemsByAxis(x=step_axis.along),
            clock=step_axis.clock,
        ),
    )


def _wrapped(text: str) -> str:
    """A text in at most two lines, as short as they can be."""
    lines = (wrap(text, max_chars) for max_chars in range(1, len(text) + 1))
    return "<br>".join(next((wrapped for wrapped in lines if len(wrapped) <= 2), [text]))


def _sentence(measured: Sequence[StepPoint], *, is_low: bool) -> str:
    if not measured:
        return "No complete step has been analysed yet."
    first, last = formatting.count(measured[0].step), formatting.count(measured[-1].step)
    over = formatting.plural(sum(point.num_steps for point in measured), "step")
    recorded = formatting.seconds(mean_s(measured, lambda point: point.recorded_s))
    takes = f"Over {over}, from {first} to {last}, a step takes {recorded}"
    if is_low:
        return f"{takes}."
    ideal = formatting.seconds(mean_s(measured, lambda point: point.ideal_s))
    return f"{takes}; without stragglers it would take {ideal}."


def _notes(num_read: int, at: StepAxis, *, is_part: bool) -> list[str]:
    part = f"Only the last {formatting.count(num_read)} steps of these windows are read."
    most = formatting.count(at.max_steps_per_point)
    if at.has_means:
        thin = f"Old steps are stored as means of several: a point stands for up to {most}."
    else:
        thin = f"Of every {most} steps the slowest is drawn."
    return [part] * is_part + [thin] * (at.max_steps_per_point > 1)


def _low_fidelity_note(off: float) -> list[str]:
    if off <= MAX_DISCREPANCY:
        return []
    return [
        f"Only recorded times are drawn: the simulated ones are {formatting.percent(off)} off, "
        f"over the limit of {formatting.percent(MAX_DISCREPANCY)}, so the time lost would be "
        "a guess."
    ]


def _row(point: StepPoint, *, is_low: bool) -> list[Cell]:
    times = (point.recorded_s, point.simulated_s, None if is_low else point.ideal_s)
    figures = (formatting.measured(time_s, "{:.3f}".format) for time_s in times)
    return [point.step, *figures, point.skipped_reason]
