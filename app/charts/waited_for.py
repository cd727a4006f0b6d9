"""Waited for: how long the other ranks waited for each rank in each step, as a heatmap."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app import words
from app.charts.arrivals import RankWaits, mean_step_s, ranks
from app.charts.figure import Along, Cell, Figure, Places, axis, integers, layout, meta, title
from app.charts.heatmap import gap_px, heatmap, on_axis
from app.charts.step_axis import StepAxis
from app.charts.step_events import StepEvent, lines
from app.charts.steps import LEFT_PX
from app.charts.theme import SCALE_MAX, SCALE_MIN, Theme

Floats = NDArray[np.float64]

MAX_ROWS = 64
# As many rows are shown whatever was waited for them, and more only from this share of the step on.
_MIN_ROWS = 14
_MIN_SHARE = 0.01

# What fits at the left of the plot.
_MAX_LABEL_CHARS = 22
_ROW_PX = 18
_MANY_ROWS_PX = 12
# The slowdown scale goes to 1.5: here to a wait of half a step.
_FULL_SHARE = SCALE_MAX - SCALE_MIN


def waited_for(
    result: Mapping[str, Any],
    *,
    theme: Theme,
    at: StepAxis | None = None,
    events: Sequence[StepEvent] = (),
) -> Figure:
    """Heatmap of milliseconds by rank and step, the ranks most waited for first, culprits outlined.

    `result` has arrivals with their figures by step, for each of its `steps`. Colours go from 0 to
    half a mean step in every job, so that a colour is the same share of the step everywhere.
    """
    steps, by_rank = result["steps"], _by_rank(result)
    at = at or StepAxis.over(list(steps))
    rows = listed(ranks(result))
    values_ms = 1e3 * np.array([by_rank[each.rank] for each in rows]).reshape(len(rows), len(steps))
    step_ms = 1e3 * mean_step_s(result)
    row_px = _ROW_PX if len(rows) <= 24 else _MANY_ROWS_PX
    return Figure(
        data=[
            heatmap(
                on_axis(_drawn(steps, values_ms, at), at),
                theme,
                zmin=0.0,
                zmax=_FULL_SHARE * step_ms,
                **_cells(len(rows), at),
            )
        ],
        layout=layout(
            theme,
            height_px=row_px * len(rows) + 52,
            left_px=LEFT_PX,
            margin={"t": 8, "b": 44},
            xaxis=at.x_axis(theme, title=title(at.title, theme)),
            yaxis=axis(
                theme,
                range=[len(rows) - 0.5, -0.5],
                tickvals=list(range(len(rows))),
                ticktext=[_label(each, theme) for each in rows],
            ),
            shapes=[*at.bands(theme), *lines(events, at, theme), *_outlines(rows, at, theme)],
        ),
        meta=_told(result, rows, values_ms, at),
    )


def listed(every: Sequence[RankWaits]) -> list[RankWaits]:
    """The ranks that have a row, most waited for first: all of few, and of many those that matter.

    Ranks to blame come before all others.
    """
    order = sorted(every, key=lambda each: not each.is_culprit)
    matter = sum(each.is_culprit or each.share >= _MIN_SHARE for each in order)
    return order[: min(MAX_ROWS, max(_MIN_ROWS, matter))]


def _by_rank(result: Mapping[str, Any]) -> dict[int, Floats]:
    """[steps] seconds of each rank, NaN where not known."""
    found = result["arrivals"]
    by_step = np.array(found["per_step"]["waited_for_s"], np.float64)
    by_step = by_step.reshape(len(result["steps"]), len(found["rank"]))
    return {rank: by_step[:, column] for column, rank in enumerate(found["rank"])}


def _drawn(steps: Sequence[int], values_ms: Floats, at: StepAxis) -> Floats:
    column = {step: index for index, step in enumerate(at.steps)}
    drawn = np.full((len(values_ms), len(at.steps)), np.nan)
    for index, step in enumerate(steps):
        if step in column:
            drawn[:, column[step]] = values_ms[:, index]
    return drawn


def _cells(num_rows: int, at: StepAxis) -> dict[str, Any]:
    steps = [0 if index is None else at.steps[index] for index in at.columns]
    return {
        "x": at.edges,
        "y": list(range(num_rows)),
        "xgap": gap_px(2 * len(at.steps)),
        "ygap": 1,
        "customdata": integers(np.broadcast_to(steps, (num_rows, len(steps)))),
        "hovertemplate": "%{y}, step %{customdata:,}<br>"
        "others waited <b>%{z:.3~g} ms</b><extra></extra>",
    }


def _outlines(rows: Sequence[RankWaits], at: StepAxis, theme: Theme) -> list[dict[str, Any]]:
    return [
        {
            "type": "rect",
            "x0": -0.5,
            "x1": at.end,
            "y0": row - 0.5,
            "y1": row + 0.5,
            "line": {"color": theme.ink, "width": 2},
        }
        for row, each in enumerate(rows)
        if each.is_culprit
    ]


def _label(each: RankWaits, theme: Theme) -> str:
    who = f"rank {each.rank}"
    gpu = "" if each.local_rank is None else f" · GPU {each.local_rank}"
    room = _MAX_LABEL_CHARS - len(who) - len(gpu)
    where = (words.markup(each.host, most_chars=room) if each.host else each.place) + gpu
    return f'{who} <span style="color:{theme.ink3}">{where}</span> ' if where else f"{who} "


def _told(
    result: Mapping[str, Any], rows: Sequence[RankWaits], values_ms: Floats, at: StepAxis
) -> Any:
    num_ranks = result["arrivals"]["num_ranks"]
    note = ""
    if num_ranks > len(rows):
        note = f"The {words.whole(len(rows))} ranks most waited for, of {words.whole(num_ranks)}."
    told = meta(
        _sentence(rows),
        ["rank", "place", "host", "mean", "of the step", "late in"]
        + [f"step {words.whole(step)}" for step in result["steps"]],
        [_row(each, values) for each, values in zip(rows, values_ms, strict=True)],
        note,
    )
    told["places"] = Places(x=at.along)
    if all(each.dp_rank is not None and each.stage is not None for each in rows):
        workers = [[each.dp_rank or 0, each.stage or 0] for each in rows]
        told["places"]["y"] = Along(what="worker", items=workers)
    if note:
        told["table"]["caption"] = note
    return told


def _row(each: RankWaits, values_ms: Floats) -> list[Cell]:
    gpu = "" if each.local_rank is None else f", GPU {each.local_rank}"
    known = [
        words.seconds(value / 1e3) if np.isfinite(value) else words.NOT_MEASURED
        for value in values_ms.tolist()
    ]
    return [
        each.rank,
        each.place,
        None if each.host is None else f"{each.host}{gpu}",
        words.seconds(each.waited_for_s),
        words.percent(each.share),
        words.percent(each.late_share),
        *known,
    ]


def _sentence(rows: Sequence[RankWaits]) -> str:
    if not rows or rows[0].waited_for_s <= 0:
        return "No rank was waited for in these steps."
    first = rows[0]
    blamed = sum(each.is_culprit for each in rows)
    more = f", and for {words.counted(blamed - 1, 'more rank')} that is" if blamed == 2 else ""
    more = f", and for {words.whole(blamed - 1)} more ranks that are" if blamed > 2 else more
    also = f"{more} to blame" if more else ""
    return (
        f"The others waited for {first.name} for {words.seconds(first.waited_for_s)} a step, "
        f"{words.percent(first.share)} of it{also}."
    )
