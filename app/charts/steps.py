"""Step times: recorded, simulated and without stragglers; the area between is the time lost."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from app import words
from app.charts.figure import Cell, Figure, Places, axis, layout, meta
from app.charts.step_axis import StepAxis, band
from app.charts.step_events import StepEvent, labels, lines
from app.charts.step_lines import Read, StepPoint, mean_s, off_by, step_lines, time_range
from app.charts.theme import Theme
from app.engine.metrics import MAX_DISCREPANCY

__all__ = ["LEFT_PX", "RIGHT_PX", "StepPoint", "steps"]

# Left edge of this chart and of the worker-by-step chart under it.
LEFT_PX = 148
# Right of the plot, where the chart under it has bars there.
RIGHT_PX = 100

# Share of the axis that shows that nothing has arrived since the last step.
_SILENT_SHARE = 0.4


def steps(
    points: Sequence[StepPoint],
    *,
    theme: Theme,
    at: StepAxis | None = None,
    silent_since: str | None = None,
    has_bars: bool = False,
    events: Sequence[StepEvent] = (),
    is_part: bool = False,
) -> Figure:
    """Line chart of step times on a broken axis; `silent_since` labels a band after the end.

    `at` has the steps to draw, where there are too many for all of them. `has_bars` leaves the
    room at the right that the chart of dp ranks needs. Where the simulated steps are too far off,
    only the recorded ones are drawn, and the note says why. `is_part` tells that there are more
    steps before these, too many to be read.
    """
    measured = [point for point in points if point.is_measured]
    step_axis = at or StepAxis.over([point.step for point in measured])
    drawn = _drawn(measured, step_axis)
    is_low = off_by(measured) > MAX_DISCREPANCY
    kept = set(step_axis.steps)
    notes = labels(events, step_axis, theme)
    shapes = [*step_axis.bands(theme), *lines(events, step_axis, theme)]
    x_axis = step_axis.x_axis(theme)
    if silent_since:
        end = step_axis.end * (1 + _SILENT_SHARE) + 1
        shapes.append(band(step_axis.end, end, theme))
        notes.append(_inside((step_axis.end + end) / 2, _narrow(silent_since), theme))
        x_axis["range"] = [-0.5, end]
    told = meta(
        _sentence(measured, is_low=is_low),
        ["step", "recorded, s", "simulated, s", "without stragglers, s", "skipped because"],
        [
            _row(point, is_low=is_low)
            for point in points
            if point.step in kept or not point.is_measured
        ],
    )
    told["places"] = Places(x=step_axis.along)
    notes_under = [*_notes(len(points), step_axis, is_part=is_part), *_withheld(measured)]
    if notes_under:
        told["note"] = " ".join(notes_under)
    return Figure(
        data=step_lines(drawn, step_axis, theme, is_low=is_low),
        layout=layout(
            theme,
            height_px=210,
            left_px=LEFT_PX,
            margin={"t": 24, "b": 24} | ({"r": RIGHT_PX} if has_bars else {}),
            hovermode="x",
            xaxis=x_axis,
            yaxis=axis(
                theme,
                showgrid=True,
                nticks=5,
                ticksuffix=" s ",
                range=time_range(drawn, is_low=is_low),
            ),
            shapes=shapes,
            annotations=notes,
        ),
        meta=told,
    )


def _drawn(measured: Sequence[StepPoint], at: StepAxis) -> list[StepPoint]:
    """The points of the axis's steps."""
    by_step = {point.step: point for point in measured}
    return [by_step[step] for step in at.steps]


def _narrow(text: str) -> str:
    """A text in at most two lines, as short as they can be."""
    lines = (wrap(text, most_chars) for most_chars in range(1, len(text) + 1))
    return "<br>".join(next((each for each in lines if len(each) <= 2), [text]))


def _inside(middle: float, text: str, theme: Theme) -> dict[str, Any]:
    return {
        "x": middle,
        "xanchor": "center",
        "yref": "paper",
        "y": 0.5,
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": theme.ink2},
    }


def _sentence(measured: Sequence[StepPoint], *, is_low: bool) -> str:
    if not measured:
        return "No complete step has been analysed yet."
    takes = (
        f"Over {words.counted(len(measured), 'step')}, from {words.whole(measured[0].step)} to "
        f"{words.whole(measured[-1].step)}, a step takes {_mean(measured, lambda p: p.recorded_s)}"
    )
    if is_low:
        return f"{takes}."
    ideal = _mean(measured, lambda point: point.ideal_s)
    return f"{takes}; without stragglers it would take {ideal}."


def _notes(num_read: int, at: StepAxis, *, is_part: bool) -> list[str]:
    part = f"Only the last {words.whole(num_read)} steps of these windows are read."
    thin = f"Of every {words.whole(at.most_of_one)} steps the slowest is drawn."
    return [part] * is_part + [thin] * (at.most_of_one > 1)


def _withheld(measured: Sequence[StepPoint]) -> list[str]:
    off = off_by(measured)
    if off <= MAX_DISCREPANCY:
        return []
    return [
        f"Only recorded times are drawn: the simulated ones are {words.percent(off)} off, over the "
        f"limit of {words.percent(MAX_DISCREPANCY)}, so the time lost would be a guess."
    ]


def _mean(points: Sequence[StepPoint], read: Read) -> str:
    return words.seconds(mean_s(points, read))


def _row(point: StepPoint, *, is_low: bool) -> list[Cell]:
    times = (point.recorded_s, point.simulated_s, None if is_low else point.ideal_s)
    figures: list[Cell] = [
        words.NOT_MEASURED if time_s is None else f"{time_s:.3f}" for time_s in times
    ]
    return [point.step, *figures, point.skipped_reason]
