"""The bars of a timeline: computing, moving data, and waiting.

`waiting_by_stage` sums up how long each stage neither computes nor moves data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from app import formatting
from app.charts.base.bars import Bar, bar_layout, bar_trace
from app.charts.base.figure import PlotlyFigure, axis, meta, numbers, title
from app.charts.base.plotly import HoverValue, PlotlyAxis, PlotlyMarker, PlotlyPattern, PlotlyTrace
from app.charts.base.theme import Theme
from app.engine.timeline.step_run import Activity, Bars, StepRun, op_labels
from app.engine.timeline.step_view import StepView

# (up to so many stages, height of a lane, of its bar, of its transfers): pixels.
_LANE_SIZES = ((8, 45, 21, 6), (16, 32, 15, 5), (1 << 30, 22, 10, 4))
_HEADER_PX = 30
_BETWEEN_PX = 28
RUNS = ("recorded", "ideal")


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """Heights in pixels from the top of the plot; `run` is 0 for recorded and 1 for ideal.

    `lane_px` is from one stage to the next, `bar_px` of a bar of computing or waiting, and
    `transfer_px` of one of moving data.
    """

    pp_size: int
    lane_px: int
    bar_px: int
    transfer_px: int

    @classmethod
    def of(cls, pp_size: int) -> "LaneLayout":
        """Of so many stages: the more there are, the lower is each."""
        sizes = next(sizes for most, *sizes in _LANE_SIZES if pp_size <= most)
        return cls(pp_size, *sizes)

    @property
    def height_px(self) -> int:
        """The whole plot."""
        return self.bottom(1) + 8

    @property
    def clear_px(self) -> int:
        """Distance of an outline from its bar."""
        return 4 if self.lane_px > 40 else 2

    def top(self, run: int) -> int:
        """Top of the run's lanes, under its header."""
        run_px = _HEADER_PX + self.pp_size * self.lane_px + _BETWEEN_PX
        return _HEADER_PX + run * run_px

    def bottom(self, run: int) -> int:
        """Bottom of the run's lanes."""
        return self.top(run) + self.pp_size * self.lane_px

    def bar_y(self, run: int, stage: int) -> float:
        """The middle of a stage's bars."""
        return self.top(run) + stage * self.lane_px + self.clear_px + self.bar_px / 2

    def transfer_y(self, run: int, stage: int) -> float:
        """The middle of its transfers, beneath."""
        below = self.bar_px / 2 + self.clear_px + self.transfer_px / 2 + 2
        return self.bar_y(run, stage) + below


_MAX_TICKS = 13
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\u00b5s"))


def time_axis(from_s: float, to_s: float, theme: Theme) -> PlotlyAxis:
    """The axis between two moments; the reader may zoom along it."""
    every_s = _round_spacing(max(to_s - from_s, 1e-9) / _MAX_TICKS)
    first = math.ceil(from_s / every_s - 1e-9)
    last = math.floor(to_s / every_s + 1e-9)
    ticks_s = [number * every_s for number in range(first, last + 1)]
    return axis(
        theme,
        range=[from_s, to_s],
        tickvals=ticks_s,
        ticktext=[_tick_label(tick_s, every_s, to_s) for tick_s in ticks_s],
        showgrid=True,
        fixedrange=False,
        title=title("time since the step began", theme),
    )


def _tick_label(at_s: float, every_s: float, to_s: float) -> str:
    # By the end of the axis, so that all its labels have one unit.
    size_s, unit = next((unit_size for unit_size in _UNITS if to_s >= unit_size[0]), _UNITS[-1])
    digits = max(0, -math.floor(math.log10(every_s / size_s) + 1e-9))
    return f"{at_s / size_s + 0.0:,.{digits}f} {unit}"


def _round_spacing(spacing_s: float) -> float:
    """The smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, ... that is at least the spacing."""
    power = 10.0 ** math.floor(math.log10(spacing_s))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= spacing_s * 0.999)


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
    view: StepView, lanes: Sequence[tuple[int, Bars]], places: LaneLayout, theme: Theme, px_s: float
) -> list[PlotlyTrace]:
    """One trace an activity and run; `lanes` are bars with 0 for recorded and 1 for ideal."""
    traces: list[PlotlyTrace] = []
    for run, activity in product(range(len(RUNS)), _DRAWING_ORDER):
        stages = [bars for at, bars in lanes if (at, bars.activity) == (run, activity)]
        if any(bars.op.size for bars in stages):
            traces.append(_trace(view, run, stages, places, theme, px_s))
    return traces


def op_name(run: StepRun, op: int) -> str:
    """Label of an operation: forward, micro-batch 3."""
    name = run.template.name(op)
    microbatch = op_labels(run.template, op).get("microbatch")
    number = "" if microbatch is None else f", micro-batch {microbatch}"
    return formatting.chart_label(_SHORT_NAMES.get(name, name)) + number


def _trace(
    view: StepView, run: int, stages: Sequence[Bars], places: LaneLayout, theme: Theme, px_s: float
) -> PlotlyTrace:
    activity = stages[0].activity
    step_run = view.ideal if run else view.recorded
    start_s = np.concatenate([bars.start_s for bars in stages])
    long_s = np.concatenate([bars.end_s for bars in stages]) - start_s
    y_of = places.transfer_y if activity == "transfer" else places.bar_y
    y = [y_of(run, bars.stage) for bars in stages for _ in range(bars.op.size)]
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
    trace["customdata"] = [row for bars in stages for row in _hover_data(step_run, bars)]
    trace["hovertemplate"] = "%{customdata[0]}<extra></extra>"
    if activity in ("forward", "backward"):
        colour = theme.on_fwd if activity == "forward" else "#FFFFFF"
        trace |= {
            "text": [text for bars in stages for text in _micro_batches(step_run, bars, px_s)],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "constraintext": "none",
            "textfont": {"size": 11, "color": colour},
        }
    return trace


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
    """The hatch of waiting."""
    return {
        "shape": "/",
        "size": 6,
        "solidity": 0.22,
        "fillmode": "replace",
        "fgcolor": theme.wait,
        "bgcolor": _CLEAR,
    }


def _hover_data(run: StepRun, bars: Bars) -> list[list[HoverValue]]:
    """The hover text of each bar, its run, stage, op type and number; no type for several."""
    rows: list[list[HoverValue]] = []
    columns = (bars.start_s, bars.end_s, bars.op, bars.num_ops)
    for start_s, end_s, op, num in zip(*(column.tolist() for column in columns), strict=True):
        name = op_name(run, op)
        subject = f"{formatting.plural(num, 'operation')} from {name} on" if num > 1 else name
        start, length = formatting.seconds(start_s), formatting.seconds(end_s - start_s)
        text = f"{subject}, stage {bars.stage}<br><b>{length}</b> from {start}"
        optype = run.template.name(op) if num == 1 else None
        rows.append([text, run.kind, bars.stage, optype, int(run.template.seq_id[op])])
    return rows


def _micro_batches(run: StepRun, bars: Bars, px_s: float) -> list[str]:
    """The micro-batch of each bar that has one and room for its number; else ""."""
    microbatch = run.template.mb_id[bars.op]
    has_room = bars.end_s - bars.start_s >= _MIN_NUMBER_PX * px_s
    is_shown = has_room & (bars.num_ops == 1) & (microbatch >= 0)
    texts: list[str] = np.where(is_shown, microbatch.astype(str), "").tolist()
    return texts


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
