"""Timeline of one step: as recorded, above the ideal run without stragglers.

`step_headline` has the sentences that open the step's page.
"""

from app import formatting
from app.charts.base.figure import (
    Cell,
    FigureMeta,
    PlotlyFigure,
    axis,
    label_width_px,
    layout,
    meta,
)
from app.charts.base.plotly import (
    PlotlyAnnotation,
    PlotlyAxis,
    PlotlyLine,
    PlotlyShape,
    box,
    line_between,
    text_at,
)
from app.charts.base.theme import Theme
from app.charts.timeline.bars import RUNS, LaneLayout, bar_traces, op_name, time_axis
from app.charts.timeline.critical_path import path_boxes, path_line
from app.engine.timeline.critical_path import PathLink
from app.engine.timeline.step_run import activity_of, bars_within, stage_bars, waiting_share
from app.engine.timeline.step_view import StepView
from app.formatting import Hosts
from app.result.figures import MAX_DISCREPANCY

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
) -> PlotlyFigure:
    """Both runs of one replica between two moments, for a plot so many pixels wide.

    At most `MAX_BARS` bars: neighbours narrower than a pixel are one.
    """
    low_s, high_s = _shown(view, from_s, to_s)
    places = LaneLayout.of(view.replayer.pp_size)
    runs = [stage_bars(run, view.dp_rank) for run in (view.recorded, view.ideal)]
    run_of = [run for run, lanes in enumerate(runs) for _ in lanes]
    drawn, px_s = bars_within([*runs[0], *runs[1]], low_s, high_s, width_px, MAX_BARS)
    op_types = view.recorded.template.op_types
    outlined = path_boxes(view.path.links, view.dp_rank, op_types, places, px_s)
    bars = bar_traces(view, list(zip(run_of, drawn, strict=True)), places, theme, px_s)
    return PlotlyFigure(
        data=[*bars, path_line(outlined, theme)],
        layout=layout(
            theme,
            height_px=places.height_px + 8 + 44,
            left_px=label_width_px([f"stage {view.replayer.pp_size - 1}  "]),
            margin={"t": 8, "b": 44},
            bargap=0,
            barmode="overlay",
            dragmode="zoom",
            xaxis=time_axis(low_s, high_s, theme),
            yaxis=_stages(places, theme),
            shapes=_ends(view, places, theme),
            annotations=_headers(view, places, theme, px_s, low_s),
        ),
        meta=_meta(view),
    )


def step_sentence(view: StepView, at: str | None = None) -> str:
    """How long the step took, and how long it would have taken; `at` is when it started."""
    took, ideal = formatting.seconds(view.recorded_s), formatting.seconds(view.ideal_s)
    step = formatting.count(view.step) + (f", at {at}," if at else "")
    if view.lost_s < 0:
        return f"Step {step} took {took}, less than its ideal of {ideal}."
    return f"Step {step} took {took}. Without stragglers it takes {ideal}."


def _shown(view: StepView, from_s: float | None, to_s: float | None) -> tuple[float, float]:
    whole_s = 1.02 * max(view.recorded_s, view.ideal_s)
    low_s = 0.0 if from_s is None else min(max(0.0, from_s), whole_s)
    high_s = whole_s if to_s is None else min(whole_s, to_s)
    return (low_s, high_s) if high_s > low_s else (0.0, whole_s)


def _stages(places: LaneLayout, theme: Theme) -> PlotlyAxis:
    where = [(run, stage) for run in range(len(RUNS)) for stage in range(places.pp_size)]
    return axis(
        theme,
        range=[places.height_px, 0],
        tickvals=[places.bar_y(run, stage) + places.clear_px for run, stage in where],
        ticktext=[f"stage {stage}  " for _, stage in where],
    )


def _ends(view: StepView, places: LaneLayout, theme: Theme) -> list[PlotlyShape]:
    """Where both runs end, and the time lost between."""
    top, bottom = places.top(0), places.bottom(1)
    ideal_top = places.top(1) - 8
    recorded_line: PlotlyLine = {"color": theme.ink, "width": 1.5}
    ideal_line: PlotlyLine = {"color": theme.ok, "width": 2, "dash": "dash"}
    ends = [
        line_between((view.recorded_s, view.recorded_s), (top, bottom), recorded_line),
        line_between((view.ideal_s, view.ideal_s), (ideal_top, bottom), ideal_line),
    ]
    if view.lost_s <= 0:
        return ends
    lost = box((view.ideal_s, view.recorded_s), (ideal_top, bottom), {"width": 0})
    return [lost | {"layer": "below", "fillcolor": theme.lost_area}, *ends]


def _headers(
    view: StepView, places: LaneLayout, theme: Theme, px_s: float, low_s: float
) -> list[PlotlyAnnotation]:
    recorded, ideal = formatting.seconds(view.recorded_s), formatting.seconds(view.ideal_s)
    lost = f"{formatting.seconds(abs(view.lost_s))} lost"
    share = f"{formatting.percent(view.lost_s / view.recorded_s)} of the step"
    is_wide = view.recorded_s - max(view.ideal_s, low_s) >= _MIN_LABEL_PX * px_s
    beside = f"; {lost}, {share}" if view.lost_s > 0 and not is_wide else ""
    at: PlotlyAnnotation = {"xref": "paper", "x": 0, "xanchor": "left", "yanchor": "middle"}
    headers = f"<b>Recorded</b>, {recorded}", f"<b>Ideal</b>, {ideal}: {_IDEAL_IS}{beside}"
    notes = [
        text_at(at | {"y": places.top(run) - 16}, text, theme.ink, 12)
        for run, text in enumerate(headers)
    ]
    if is_wide:
        middle = (places.top(1) + places.bottom(1)) / 2
        text = f"<b>{formatting.seconds(view.lost_s)}</b> lost<br>{share}"
        between_s = (max(view.ideal_s, low_s) + view.recorded_s) / 2
        notes.append(text_at({"x": between_s, "y": middle}, text, theme.ink, 12))
    return notes


def _meta(view: StepView) -> FigureMeta:
    """The sentence, and the longest operations of the recorded run in the order of time."""
    run, dp_rank = view.recorded, view.dp_rank
    took_s = run.end_s[:, dp_rank] - run.start_s[:, dp_rank]
    longest = sorted((-took_s).argsort(kind="stable")[:_MAX_ROWS].tolist())
    longest.sort(key=lambda op: run.start_s[op, dp_rank])
    ideal_s = view.replayer.durations.ideal_s
    rows: list[list[Cell]] = [
        [
            op_name(run, op),
            int(run.template.stage[op]),
            formatting.seconds(float(run.start_s[op, dp_rank])),
            formatting.seconds(float(took_s[op])),
            formatting.seconds(float(ideal_s[op])),
        ]
        for op in longest
    ]
    caption = ""
    if len(took_s) > _MAX_ROWS:
        operations = formatting.plural(len(took_s), "operation")
        caption = f"The {_MAX_ROWS} longest of {operations} of dp {dp_rank}, recorded."
    return meta(step_sentence(view), _COLUMNS, rows, caption=caption)


# Pauses below this share of the computations' time count as none.
_NO_PAUSE_SHARE = 0.01
_MIN_TOLD_SHARE = 0.05
_MAX_NAMED = 3
_PASSES = ("forward", "backward")


def step_headline(
    view: StepView, hosts: Hosts | None = None, at: str | None = None
) -> tuple[str, str]:
    """The step's time, and its explanation by the critical path; `at` is when it started."""
    (dp_rank, stage, _), share = next(iter(view.path.worker_shares.items()))
    name = formatting.worker(dp_rank, stage, hosts)
    links = [link for link in view.path.links if (link.dp_rank, link.stage) == (dp_rank, stage)]
    computed = _computed(view, links)
    # Only these computations, as in the chart of the path's parts, where launches are apart.
    own_s = sum(link.own_s for link in computed) or share * view.path.length_s
    times = (
        f"The critical path runs through {name} for {formatting.seconds(own_s)}"
        f"{_computations(computed)}{_others(view, dp_rank, stage)}."
    )
    return step_sentence(view, at), " ".join(
        [times, *_elsewhere(view), *_launches(view), *_doubt(view)]
    )


def _computed(view: StepView, links: list[PathLink]) -> list[PathLink]:
    """The forward and backward computations among them."""
    types = view.recorded.template.op_types
    specs = {link.optype: types.by_code[types.codes[link.optype]] for link in links}
    return [link for link in links if activity_of(specs[link.optype]) in _PASSES]


def _computations(computed: list[PathLink]) -> str:
    if not computed:
        return ""
    own_s, gap_s = (sum(getattr(link, name) for link in computed) for name in ("own_s", "gap_s"))
    follow = " without a pause" if len(computed) > 1 and gap_s < _NO_PAUSE_SHARE * own_s else ""
    return f", {formatting.plural(len(computed), 'computation')}{follow}"


def _others(view: StepView, dp_rank: int, stage: int) -> str:
    share = waiting_share(view.recorded, view.dp_rank)
    is_here = view.dp_rank == dp_rank
    others = [part for other, part in enumerate(share) if other != stage or not is_here]
    if not others:
        return ""
    low, high = formatting.percent(min(others)), formatting.percent(max(others))
    how_much = low if low == high else f"{low.removesuffix(' %')} to {high}"
    subject = f"stage {1 - stage} waits" if len(others) == 1 else "the other stages wait"
    subject = subject if is_here else f"dp {view.dp_rank} waits"
    return f", while {subject} {how_much} of the step"


def _elsewhere(view: StepView) -> list[str]:
    """Notes that part of the path lies on other replicas."""
    on_path = sorted({dp_rank for dp_rank, _, _ in view.path.worker_shares} - {view.dp_rank})
    if not on_path:
        return []
    shown = [f"dp {dp_rank}" for dp_rank in on_path[:_MAX_NAMED]]
    more = len(on_path) - len(shown)
    where = [*shown, formatting.plural(more, "other")] if more else shown
    listed = where[0] if len(where) == 1 else f"{', '.join(where[:-1])} and {where[-1]}"
    return [f"It also goes through {listed}."]


def _launches(view: StepView) -> list[str]:
    share = view.path.waiting_share
    if share < _MIN_TOLD_SHARE:
        return []
    part = formatting.percent(share)
    return [f"For {part} of the path nothing was launched though it could have been."]


def _doubt(view: StepView) -> list[str]:
    replayer = view.replayer
    simulated_s = float(replayer.simulated_s[replayer.steps.index(view.step)])
    off = abs(simulated_s - view.recorded_s) / view.recorded_s if view.recorded_s else 0.0
    if off <= MAX_DISCREPANCY:
        return []
    limit = formatting.percent(MAX_DISCREPANCY)
    return [f"The simulated step is {formatting.percent(off)} off, over the limit of {limit}."]
