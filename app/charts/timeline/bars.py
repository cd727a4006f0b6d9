"""The bars of a timeline: computing, moving data, and waiting.

`waiting_by_stage` sums up how long each stage neither computes nor moves data.
"""

from collections.abc import Sequence

import numpy as np

from app import formatting
from app.charts.base.figure import Bar, PlotlyFigure, bar_layout, bar_trace, meta, numbers
from app.charts.base.plotly import HoverValue, PlotlyMarker, PlotlyPattern, PlotlyTrace
from app.charts.base.theme import Theme
from app.charts.timeline.axes import RUNS, LaneLayout
from app.engine.timeline.slices import op_labels
from app.engine.timeline.step_run import Activity, Bars, StepRun
from app.engine.timeline.step_view import StepView

_MIN_NUMBER_PX = 16
_SHORT_NAMES = {"forward-compute": "forward", "backward-compute": "backward"}
_DRAWING_ORDER: tuple[Activity, ...] = (
    "waiting",
    "forward",
    "backward",
    "optimizer",
    "other",
    "transfer",
)


def bar_traces(
    view: StepView,
    found: Sequence[tuple[int, Bars]],
    places: LaneLayout,
    theme: Theme,
    px_s: float,
) -> list[PlotlyTrace]:
    """One trace an activity and run; `found` are bars with 0 for recorded and 1 for ideal."""
    traces: list[PlotlyTrace] = []
    for run in range(len(RUNS)):
        for activity in _DRAWING_ORDER:
            mine = [bars for which, bars in found if (which, bars.activity) == (run, activity)]
            if any(bars.op.size for bars in mine):
                traces.append(_trace(view, run, mine, places, theme, px_s))
    return traces


def op_name(run: StepRun, op: int) -> str:
    """Label of an operation: forward, micro-batch 3."""
    name = run.template.name(op)
    microbatch = op_labels(run.template, op).get("microbatch")
    of = "" if microbatch is None else f", micro-batch {microbatch}"
    return formatting.chart_label(_SHORT_NAMES.get(name, name)) + of


def _trace(
    view: StepView,
    run: int,
    mine: Sequence[Bars],
    places: LaneLayout,
    theme: Theme,
    px_s: float,
) -> PlotlyTrace:
    activity = mine[0].activity
    of_run = view.ideal if run else view.recorded
    start_s = np.concatenate([bars.start_s for bars in mine])
    long_s = np.concatenate([bars.end_s for bars in mine]) - start_s
    y_of = places.transfer_y if activity == "transfer" else places.bar_y
    y = [y_of(run, bars.stage) for bars in mine for _ in range(bars.op.size)]
    trace: PlotlyTrace = {
        "type": "bar",
        "orientation": "h",
        "name": f"{RUNS[run]} {activity}",
        "base": numbers(start_s),
        "x": numbers(long_s),
        "y": numbers(y),
        "width": places.transfer_px if activity == "transfer" else places.bar_px,
        "marker": _marker(activity, theme),
    }
    if activity == "waiting":
        return trace | {"hoverinfo": "skip"}
    trace["customdata"] = [text for bars in mine for text in _hover_data(of_run, bars)]
    trace["hovertemplate"] = "%{customdata[0]}<extra></extra>"
    return trace | _micro_batches(of_run, mine, theme, px_s)


def _marker(activity: Activity, theme: Theme) -> PlotlyMarker:
    colour = {
        "forward": theme.fwd,
        "backward": theme.bwd,
        "optimizer": theme.upd,
        "other": theme.sim,
        "transfer": theme.xfer,
        "waiting": _CLEAR,
    }[activity]
    marker: PlotlyMarker = {"color": colour, "line": {"width": 0}}
    if activity in ("forward", "backward"):
        # Bars that follow each other without a pause stay apart.
        marker["line"] = {"width": 1, "color": theme.surface}
    if activity == "waiting":
        marker["pattern"] = _hatch(theme)
    return marker


_CLEAR = "rgba(0,0,0,0)"


def _hatch(theme: Theme) -> PlotlyPattern:
    """What stands for waiting."""
    return {
        "shape": "/",
        "size": 6,
        "solidity": 0.22,
        "fillmode": "replace",
        "fgcolor": theme.wait,
        "bgcolor": _CLEAR,
    }


def _hover_data(run: StepRun, bars: Bars) -> list[list[HoverValue]]:
    """Of each bar: what hovering says, its run, stage, op type and number; no type for several."""
    found: list[list[HoverValue]] = []
    columns = (bars.start_s, bars.end_s, bars.op, bars.num_ops)
    for start_s, end_s, op, num in zip(*(each.tolist() for each in columns), strict=True):
        name = op_name(run, op)
        what = f"{formatting.plural(num, 'operation')} from {name} on" if num > 1 else name
        length = formatting.seconds(end_s - start_s)
        text = f"{what}, stage {bars.stage}<br><b>{length}</b> from {formatting.seconds(start_s)}"
        optype = run.template.name(op) if num == 1 else None
        found.append([text, run.kind, bars.stage, optype, int(run.template.seq_id[op])])
    return found


def _micro_batches(run: StepRun, mine: Sequence[Bars], theme: Theme, px_s: float) -> PlotlyTrace:
    activity = mine[0].activity
    if activity not in ("forward", "backward"):
        return {}
    return {
        "text": [text for bars in mine for text in _numbers_in(run, bars, px_s)],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {"size": 11, "color": theme.on_fwd if activity == "forward" else "#FFFFFF"},
    }


def _numbers_in(run: StepRun, bars: Bars, px_s: float) -> list[str]:
    numbers_of = run.template.mb_id[bars.op].tolist()
    is_wide = bars.end_s - bars.start_s >= _MIN_NUMBER_PX * px_s
    has_one = is_wide & (bars.num_ops == 1)
    return [
        str(number) if wide and number >= 0 else ""
        for number, wide in zip(numbers_of, has_one.tolist(), strict=True)
    ]


def waiting_by_stage(
    share: Sequence[float], length_s: float, dp_rank: int, *, theme: Theme
) -> PlotlyFigure:
    """Hatched bars by stage: the share of a step that one replica's workers wait."""
    bars = [Bar(f"stage {stage}", part, theme.wait) for stage, part in enumerate(share)]
    marker: PlotlyMarker = {
        "color": _CLEAR,
        "pattern": _hatch(theme),
        "line": {"width": 1, "color": theme.wait},
    }
    hover = "%{customdata} waits<br><b>%{text}</b> of the step<extra></extra>"
    row_px = 44 if len(bars) <= 5 else 30 if len(bars) <= 8 else 22
    return PlotlyFigure(
        data=[bar_trace(bars, theme) | {"marker": marker, "hovertemplate": hover}],
        layout=bar_layout(bars, theme, row_px=row_px, full_share=0.6),
        meta=meta(
            _sentence(share, dp_rank),
            ["stage", "share of the step", "time"],
            [
                [stage, formatting.percent(part), formatting.seconds(part * length_s)]
                for stage, part in enumerate(share)
            ],
        ),
    )


def _sentence(share: Sequence[float], dp_rank: int) -> str:
    least = min(range(len(share)), key=lambda stage: share[stage])
    if len(share) == 1:
        return f"The worker of dp {dp_rank} waits {formatting.percent(share[0])} of the step."
    return (
        f"On dp {dp_rank}, stage {least} waits least, {formatting.percent(share[least])} of the "
        f"step, and the others up to {formatting.percent(max(share))}."
    )
