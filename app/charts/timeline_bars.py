"""The bars of a timeline: what computes, what moves data, and where nothing runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from app import words
from app.charts.figure import numbers
from app.charts.lane_places import RUNS, LanePlaces
from app.charts.theme import Theme
from app.engine.run import Run
from app.engine.template import Template
from app.engine.timeline.lanes import Activity, Bars
from app.engine.timeline.step_view import StepView
from app.engine.timeline.text import labels

_MIN_NUMBER_PX = 16
_NAMES = {"forward-compute": "forward", "backward-compute": "backward"}
_ORDER: tuple[Activity, ...] = (
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
    places: LanePlaces,
    theme: Theme,
    px_s: float,
) -> list[dict[str, Any]]:
    """One trace an activity and run; `found` are bars with 0 for recorded and 1 for ideal."""
    traces = []
    for run in range(len(RUNS)):
        for activity in _ORDER:
            mine = [bars for which, bars in found if (which, bars.activity) == (run, activity)]
            if any(bars.op.size for bars in mine):
                traces.append(_trace(view, run, mine, places, theme, px_s))
    return traces


def op_name(template: Template, op: int) -> str:
    """An operation in a reader's words: forward, micro-batch 3."""
    name = template.name(op)
    microbatch = labels(template, op).get("microbatch")
    of = "" if microbatch is None else f", micro-batch {microbatch}"
    return words.markup(_NAMES.get(name, name)) + of


def _trace(
    view: StepView,
    run: int,
    mine: Sequence[Bars],
    places: LanePlaces,
    theme: Theme,
    px_s: float,
) -> dict[str, Any]:
    activity = mine[0].activity
    of_run = view.ideal if run else view.recorded
    start_s = np.concatenate([bars.start_s for bars in mine])
    long_s = np.concatenate([bars.end_s for bars in mine]) - start_s
    y_of = places.transfer_y if activity == "transfer" else places.bar_y
    y = [y_of(run, bars.stage) for bars in mine for _ in range(bars.op.size)]
    trace = {
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
    return trace | {
        "customdata": [told for bars in mine for told in _told(of_run, bars)],
        "hovertemplate": "%{customdata[0]}<extra></extra>",
        **_micro_batches(of_run, mine, theme, px_s),
    }


def _marker(activity: Activity, theme: Theme) -> dict[str, Any]:
    colour = {
        "forward": theme.fwd,
        "backward": theme.bwd,
        "optimizer": theme.upd,
        "other": theme.sim,
        "transfer": theme.xfer,
        "waiting": "rgba(0,0,0,0)",
    }[activity]
    marker: dict[str, Any] = {"color": colour, "line": {"width": 0}}
    if activity in ("forward", "backward"):
        # Bars that follow each other without a pause stay apart.
        marker["line"] = {"width": 1, "color": theme.surface}
    if activity == "waiting":
        hatch = {"shape": "/", "size": 6, "solidity": 0.22, "fillmode": "replace"}
        marker["pattern"] = hatch | {"fgcolor": theme.wait, "bgcolor": "rgba(0,0,0,0)"}
    return marker


def _told(run: Run, bars: Bars) -> list[list[Any]]:
    """Of each bar: what hovering says, its run, stage, op type and number; no type for several."""
    found = []
    columns = (bars.start_s, bars.end_s, bars.op, bars.num_ops)
    for start_s, end_s, op, num in zip(*(each.tolist() for each in columns), strict=True):
        name = op_name(run.template, op)
        what = f"{words.counted(num, 'operation')} from {name} on" if num > 1 else name
        length = words.seconds(end_s - start_s)
        text = f"{what}, stage {bars.stage}<br><b>{length}</b> from {words.seconds(start_s)}"
        optype = run.template.name(op) if num == 1 else None
        found.append([text, run.kind, bars.stage, optype, int(run.template.seq_id[op])])
    return found


def _micro_batches(run: Run, mine: Sequence[Bars], theme: Theme, px_s: float) -> dict[str, Any]:
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


def _numbers_in(run: Run, bars: Bars, px_s: float) -> list[str]:
    numbers_of = run.template.mb_id[bars.op].tolist()
    is_wide = bars.end_s - bars.start_s >= _MIN_NUMBER_PX * px_s
    has_one = is_wide & (bars.num_ops == 1)
    return [
        str(number) if wide and number >= 0 else ""
        for number, wide in zip(numbers_of, has_one.tolist(), strict=True)
    ]
