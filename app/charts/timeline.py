"""One step as it was recorded, above what it would have been without stragglers."""

from typing import Any

from app import words
from app.charts.figure import Cell, Figure, Meta, axis, label_width_px, layout, meta
from app.charts.lane_places import RUNS, LanePlaces
from app.charts.path_line import boxes, path_line
from app.charts.theme import Theme
from app.charts.time_axis import time_axis
from app.charts.timeline_bars import bar_traces, op_name
from app.engine.timeline.lanes import fitted, lanes
from app.engine.timeline.step_view import StepView

MAX_BARS = 3000
WIDTH_PX = 1280
_MIN_LABEL_PX = 110
_MAX_ROWS = 200
_IDEAL_IS = "every operation takes the mean or median of its kind"
_COLUMNS = ["operation", "stage", "start", "duration", "ideal"]


def timeline(
    view: StepView,
    *,
    theme: Theme,
    from_s: float | None = None,
    to_s: float | None = None,
    width_px: int = WIDTH_PX,
) -> Figure:
    """Both runs of one replica between two moments, for a plot so many pixels wide.

    At most `MAX_BARS` bars: neighbours narrower than a pixel are one.
    """
    low_s, high_s = _shown(view, from_s, to_s)
    places = LanePlaces(view.replayer.pp_size)
    runs = [lanes(run, view.dp_rank) for run in (view.recorded, view.ideal)]
    which = [run for run, found in enumerate(runs) for _ in found]
    drawn, px_s = fitted([*runs[0], *runs[1]], low_s, high_s, width_px, MAX_BARS)
    op_types = view.recorded.template.op_types
    outlined = boxes(view.path.links, view.dp_rank, op_types, places, px_s)
    bars = bar_traces(view, list(zip(which, drawn, strict=True)), places, theme, px_s)
    return Figure(
        data=[*bars, path_line(outlined, theme)],
        layout=layout(
            theme,
            height_px=places.height_px + 8 + 44,
            left_px=_left_px(view),
            margin={"t": 8, "b": 44},
            bargap=0,
            barmode="overlay",
            dragmode="zoom",
            xaxis=time_axis(low_s, high_s, theme),
            yaxis=_stages(view, places, theme),
            shapes=_ends(view, places, theme),
            annotations=_headers(view, places, theme, px_s, low_s),
        ),
        meta=_meta(view),
    )


def sentence(view: StepView) -> str:
    """How long the step took, and how long it would have taken."""
    took, ideal = words.seconds(view.recorded_s), words.seconds(view.ideal_s)
    step = words.whole(view.step)
    if view.lost_s < 0:
        return f"Step {step} took {took}, less than its ideal of {ideal}."
    return f"Step {step} took {took}. Without stragglers it takes {ideal}."


def _shown(view: StepView, from_s: float | None, to_s: float | None) -> tuple[float, float]:
    whole_s = 1.02 * max(view.recorded_s, view.ideal_s)
    low_s = 0.0 if from_s is None else min(max(0.0, from_s), whole_s)
    high_s = whole_s if to_s is None else min(whole_s, to_s)
    return (low_s, high_s) if high_s > low_s else (0.0, whole_s)


def _left_px(view: StepView) -> int:
    return label_width_px([f"stage {view.replayer.pp_size - 1}  "])


def _stages(view: StepView, places: LanePlaces, theme: Theme) -> dict[str, Any]:
    where = [(run, stage) for run in range(len(RUNS)) for stage in range(places.pp_size)]
    return axis(
        theme,
        range=[places.height_px, 0],
        tickvals=[places.bar_y(run, stage) + places.clear_px for run, stage in where],
        ticktext=[f"stage {stage}  " for _, stage in where],
    )


def _ends(view: StepView, places: LanePlaces, theme: Theme) -> list[dict[str, Any]]:
    """Where both runs end, and the time lost between."""
    top, bottom = places.top(0), places.bottom(1)
    ideal_top = places.top(1) - 8
    recorded = _upright(view.recorded_s, top, bottom, {"color": theme.ink, "width": 1.5})
    ideal_line = {"color": theme.ok, "width": 2, "dash": "dash"}
    ideal = _upright(view.ideal_s, ideal_top, bottom, ideal_line)
    if view.lost_s <= 0:
        return [recorded, ideal]
    lost = {"type": "rect", "x0": view.ideal_s, "x1": view.recorded_s, "layer": "below"}
    lost |= {"y0": ideal_top, "y1": bottom, "fillcolor": theme.lost_area, "line": {"width": 0}}
    return [lost, recorded, ideal]


def _upright(at_s: float, y0: float, y1: float, line: dict[str, Any]) -> dict[str, Any]:
    return {"type": "line", "x0": at_s, "x1": at_s, "y0": y0, "y1": y1, "line": line}


def _headers(
    view: StepView, places: LanePlaces, theme: Theme, px_s: float, low_s: float
) -> list[dict[str, Any]]:
    recorded, ideal = words.seconds(view.recorded_s), words.seconds(view.ideal_s)
    lost = f"{words.seconds(abs(view.lost_s))} lost"
    share = f"{words.percent(view.lost_s / view.recorded_s)} of the step"
    is_wide = view.recorded_s - max(view.ideal_s, low_s) >= _MIN_LABEL_PX * px_s
    beside = f"; {lost}, {share}" if view.lost_s > 0 and not is_wide else ""
    told = [
        _header(places.top(0) - 16, f"<b>Recorded</b>, {recorded}", theme),
        _header(places.top(1) - 16, f"<b>Ideal</b>, {ideal}: {_IDEAL_IS}{beside}", theme),
    ]
    if is_wide:
        middle = (places.top(1) + places.bottom(1)) / 2
        text = f"<b>{words.seconds(view.lost_s)}</b> lost<br>{share}"
        between_s = (max(view.ideal_s, low_s) + view.recorded_s) / 2
        told.append(_words(text, theme) | {"x": between_s, "y": middle})
    return told


def _header(y: float, text: str, theme: Theme) -> dict[str, Any]:
    at_left = {"xref": "paper", "x": 0, "xanchor": "left", "y": y, "yanchor": "middle"}
    return _words(text, theme) | at_left


def _words(text: str, theme: Theme) -> dict[str, Any]:
    return {"text": text, "showarrow": False, "font": {"size": 12, "color": theme.ink}}


def _meta(view: StepView) -> Meta:
    """The sentence, and the longest operations of the recorded run in the order of time."""
    run, dp_rank = view.recorded, view.dp_rank
    took_s = run.end_s[:, dp_rank] - run.start_s[:, dp_rank]
    longest = sorted((-took_s).argsort(kind="stable")[:_MAX_ROWS].tolist())
    longest.sort(key=lambda op: run.start_s[op, dp_rank])
    ideal_s = view.replayer.durations.ideal_s
    rows: list[list[Cell]] = [
        [
            op_name(run.template, op),
            int(run.template.stage[op]),
            words.seconds(float(run.start_s[op, dp_rank])),
            words.seconds(float(took_s[op])),
            words.seconds(float(ideal_s[op])),
        ]
        for op in longest
    ]
    told = meta(sentence(view), _COLUMNS, rows)
    if len(took_s) > _MAX_ROWS:
        of = words.counted(len(took_s), "operation")
        told["table"]["caption"] = f"The {_MAX_ROWS} longest of {of} of dp {dp_rank}, recorded."
    return told
