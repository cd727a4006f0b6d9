"""Replica by step: which dp rank is slow in which step, and how often each one is the slowest."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app import words
from app.charts.figure import Along, Cell, Figure, Places, axis, integers, layout, meta, title
from app.charts.heatmap import gap_px, heatmap, on_axis
from app.charts.step_axis import StepAxis
from app.charts.step_events import StepEvent, lines
from app.charts.steps import LEFT_PX, RIGHT_PX
from app.charts.theme import Theme

Floats = NDArray[np.float64]

# More rows cannot be told apart.
MAX_ROWS = 64
_HEIGHT_PX = 280
_BAR_PX = 44  # of the longest; its value stands behind it
# The header of the bars, above the plot.
_TOP_PX = 20


def dp_steps(
    steps: Sequence[int],
    dp_rank_slowdown: ArrayLike,
    *,
    theme: Theme,
    at: StepAxis | None = None,
    events: Sequence[StepEvent] = (),
) -> Figure:
    """Heatmap of the slowdown that each dp rank alone would give each step.

    `dp_rank_slowdown` is [step, dp rank], one entry per step of `steps` (ascending). Ranks of
    large jobs share a row, which shows the slowest of them. `at` is the axis of the chart above.
    """
    slowdown = np.asarray(dp_rank_slowdown, dtype=np.float64)
    at = at or StepAxis.over(list(steps))
    rows = _rows(slowdown.shape[1])
    share = slowest_share(slowdown)
    row_px = max(4, min(18, _HEIGHT_PX // len(rows)))
    told = meta(
        _sentence(share, len(steps)),
        ["dp rank", "steps as the slowest", "highest slowdown in a step"],
        _table(slowdown, share),
    )
    told["places"] = Places(x=at.along, y=Along(what="dp", items=[list(ranks) for ranks in rows]))
    return Figure(
        data=[heatmap(_cells(steps, slowdown, rows, at), theme, **_hover(rows, at))],
        layout=layout(
            theme,
            height_px=row_px * len(rows) + _TOP_PX + 44,
            left_px=LEFT_PX,
            margin={"t": _TOP_PX, "b": 44, "r": RIGHT_PX},
            xaxis=at.x_axis(theme, title=title(at.title, theme)),
            yaxis=_row_axis(rows, theme),
            shapes=[*at.bands(theme), *lines(events, at, theme), *_bars(rows, share, theme)],
            annotations=_values(rows, share, theme),
        ),
        meta=told,
    )


def slowest_share(slowdown: Floats) -> Floats:
    """[dp rank], share of the measured steps in which each rank is the slowest, of [step, dp]."""
    measured = slowdown[np.isfinite(slowdown).all(axis=1)]
    if not measured.size:
        return np.full(slowdown.shape[1], np.nan)
    times = np.bincount(measured.argmax(axis=1), minlength=slowdown.shape[1])
    return np.asarray(times / len(measured))


def _rows(dp_size: int) -> list[range]:
    """The dp ranks of each row."""
    size = -(-dp_size // MAX_ROWS)
    return [range(first, min(first + size, dp_size)) for first in range(0, dp_size, size)]


def _cells(steps: Sequence[int], slowdown: Floats, rows: Sequence[range], at: StepAxis) -> Floats:
    column = {step: index for index, step in enumerate(at.steps)}
    values = np.full((len(rows), len(at.steps)), np.nan)
    kept = [index for index, step in enumerate(steps) if step in column]
    if kept:
        of_rows = np.maximum.reduceat(slowdown[kept], [ranks[0] for ranks in rows], axis=1)
        values[:, [column[steps[index]] for index in kept]] = of_rows.T
    return on_axis(values, at)


def _hover(rows: Sequence[range], at: StepAxis) -> dict[str, Any]:
    steps = [0 if index is None else at.steps[index] for index in at.columns]
    shape = (len(rows), len(steps))
    is_alone = len(rows[0]) == 1
    # Where a row has a tick, %{y} is its label, else its number.
    who = f"{'' if _is_named(rows) else 'dp '}%{{y}}, step %{{customdata:,}}"
    if not is_alone:
        who = "%{customdata}"
    return {
        "x": at.edges,
        "y": list(range(len(rows))),
        "xgap": gap_px(2 * len(at.steps)),
        "ygap": 1 if len(rows) <= 32 else 0,
        "customdata": integers(np.broadcast_to(steps, shape))
        if is_alone
        else [[f"{_name(ranks)}, step {words.whole(step)}" for step in steps] for ranks in rows],
        "hovertemplate": f"{who}<br><b>%{{z:.3f}}{words.TIMES}</b><extra></extra>",
    }


def _name(ranks: range) -> str:
    return f"the slowest of dp {ranks[0]} to {ranks[-1]}"


def _row_axis(rows: Sequence[range], theme: Theme) -> dict[str, Any]:
    shown = range(0, len(rows), 1 if _is_named(rows) else 8)
    dp = "dp " if _is_named(rows) else ""
    return axis(
        theme,
        range=[len(rows) - 0.5, -0.5],
        tickvals=list(shown),
        ticktext=[f"{dp}{rows[at][0]}" for at in shown],
        ticklabelstandoff=4,
        **({} if dp else {"title": title("dp rank", theme)}),
    )


def _is_named(rows: Sequence[range]) -> bool:
    """Whether each row has its label."""
    return len(rows) <= 16


def _row_shares(rows: Sequence[range], share: Floats) -> list[float]:
    return [float(share[list(ranks)].sum()) for ranks in rows]


def _bars(rows: Sequence[range], share: Floats, theme: Theme) -> list[dict[str, Any]]:
    """Beside the plot, in its right margin, so that the x axis stays that of the chart above."""
    shares = _row_shares(rows, share)
    longest = max((each for each in shares if np.isfinite(each)), default=0.0)
    return [
        {
            "type": "rect",
            "xref": "paper",
            "xsizemode": "pixel",
            "xanchor": 1,
            "x0": 10,
            "x1": 10 + _BAR_PX * each / longest,
            "y0": row - 0.28,
            "y1": row + 0.28,
            "fillcolor": theme.line2,
            "line": {"width": 0},
        }
        for row, each in enumerate(shares)
        if longest > 0 and np.isfinite(each)
    ]


def _values(rows: Sequence[range], share: Floats, theme: Theme) -> list[dict[str, Any]]:
    beside = {"xref": "paper", "x": 1, "xanchor": "left", "showarrow": False}
    font = {"size": 11, "color": theme.ink2}
    head = {**beside, "yref": "paper", "y": 1, "yanchor": "bottom", "xshift": 8, "font": font}
    shares = _row_shares(rows, share)
    longest = max((each for each in shares if np.isfinite(each)), default=0.0)
    if not longest or len(rows) > 16:
        return [{**head, "text": "steps as slowest"}]
    return [{**head, "text": "steps as slowest"}] + [
        {
            **beside,
            "y": row,
            "xshift": 12 + _BAR_PX * each / longest,
            "text": words.percent(each),
            "font": font,
        }
        for row, each in enumerate(shares)
    ]


def _sentence(share: Floats, num_steps: int) -> str:
    if not np.isfinite(share).all():
        return "No step shown here has figures by dp rank."
    most, num_ranks = int(share.argmax()), int((share > 0).sum())
    over = f"Over {words.counted(num_steps, 'step')}"
    if num_ranks == 1:
        return f"{over}, dp {most} is the slowest in every one."
    return (
        f"{over}, {num_ranks} of {words.counted(share.size, 'dp rank')} were the slowest at some "
        f"time; dp {most} most often, in {words.percent(float(share[most]))} of the steps."
    )


def _table(slowdown: Floats, share: Floats) -> list[list[Cell]]:
    return [
        [rank, _percent(float(share[rank])), _highest(slowdown[:, rank])]
        for rank in range(slowdown.shape[1])
    ]


def _percent(share: float) -> str:
    return words.percent(share) if np.isfinite(share) else words.NOT_MEASURED


def _highest(of_rank: Floats) -> str:
    known = of_rank[np.isfinite(of_rank)]
    return words.ratio(float(known.max())) if known.size else words.NOT_MEASURED
