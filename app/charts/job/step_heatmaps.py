"""Slowdown by step as heatmaps under the step-time chart: of every dp rank, of the slowest workers.

Beside the dp ranks' heatmap, bars say how often each one is the slowest. Ranks of large jobs share
a row, which shows the slowest of them.
"""

from collections.abc import Sequence

import numpy as np

from app import formatting
from app.charts.base.figure import (
    AxisItems,
    ItemsByAxis,
    PlotlyFigure,
    axis,
    layout,
    meta,
    row_axis,
    title,
)
from app.charts.base.heatmap import (
    Floats,
    Slowdowns,
    are_alike,
    column_steps,
    heatmap_by_step,
    row_label,
)
from app.charts.base.plotly import (
    PlotlyAnnotation,
    PlotlyAxis,
    PlotlyShape,
    PlotlyTrace,
    box,
    text_at,
)
from app.charts.base.step_axis import StepAxis, StepEvent, event_lines
from app.charts.base.theme import Theme
from app.charts.job.step_times import LEFT_PX, RIGHT_PX
from app.formatting import Hosts

# More rows cannot be told apart.
MAX_DP_ROWS = 64
_DP_HEIGHT_PX = 280
_BAR_PX = 44  # of the longest; its value stands behind it
# The header of the bars, above the plot.
_TOP_PX = 20


def dp_steps(
    steps: Sequence[int],
    dp_rank_slowdown: Slowdowns,
    *,
    theme: Theme,
    at: StepAxis | None = None,
    events: Sequence[StepEvent] = (),
) -> PlotlyFigure:
    """Heatmap of the slowdown that each dp rank alone would give each step.

    `dp_rank_slowdown` is [step, dp rank], one entry per step of `steps` (ascending). Ranks of
    large jobs share a row, which shows the slowest of them. `at` is the axis of the chart above.
    """
    slowdown = np.asarray(dp_rank_slowdown, dtype=np.float64)
    at = at or StepAxis.over(list(steps))
    dp_size = slowdown.shape[1]
    num_ranks = -(-dp_size // MAX_DP_ROWS)  # of a row
    rows = [range(dp, min(dp + num_ranks, dp_size)) for dp in range(0, dp_size, num_ranks)]
    share = slowest_share(slowdown)
    row_px = max(4, min(18, _DP_HEIGHT_PX // len(rows)))
    return PlotlyFigure(
        data=[_dp_cells(steps, slowdown, rows, at, theme)],
        layout=layout(
            theme,
            height_px=row_px * len(rows) + _TOP_PX + 44 + at.clock_px,
            left_px=LEFT_PX,
            margin={"t": _TOP_PX, "b": 44 + at.clock_px, "r": RIGHT_PX},
            xaxis=at.x_axis(theme, has_title=True),
            yaxis=_dp_axis(rows, theme),
            shapes=[
                *at.bands(theme),
                *event_lines(events, at, theme),
                *_share_bars(rows, share, theme),
            ],
            annotations=_share_texts(rows, share, theme),
        ),
        meta=meta(
            _dp_sentence(share, len(steps)),
            ["dp rank", "steps as the slowest", "highest slowdown in a step"],
            [
                [
                    rank,
                    formatting.measured(share[rank], formatting.percent),
                    formatting.measured(highest, formatting.ratio),
                ]
                for rank, highest in enumerate(np.fmax.reduce(slowdown, axis=0).tolist())
            ],
            places=ItemsByAxis(
                x=at.along, y=AxisItems(what="dp", items=[list(ranks) for ranks in rows])
            ),
            clock=at.clock,
        ),
    )


def slowest_share(slowdown: Floats) -> Floats:
    """[dp rank], share of the measured steps in which each rank is the slowest, of [step, dp]."""
    is_known = np.isfinite(slowdown)
    measured = np.where(is_known, slowdown, -np.inf)[is_known.any(axis=1)]
    if not measured.size:
        return np.full(slowdown.shape[1], np.nan)
    times = np.bincount(measured.argmax(axis=1), minlength=slowdown.shape[1])
    return np.asarray(times / len(measured))


def _dp_cells(
    steps: Sequence[int], slowdown: Floats, rows: Sequence[range], at: StepAxis, theme: Theme
) -> PlotlyTrace:
    """[row, step], the slowest of each row's ranks."""
    slowest = np.fmax.reduceat(slowdown, [ranks[0] for ranks in rows], axis=1).T
    # Where a row has a tick, %{y} is its label, else its number.
    place = f"{'' if _is_named(rows) else 'dp '}%{{y}}, step %{{customdata:,}}"
    is_alone = len(rows[0]) == 1
    hover = f"<br><b>%{{z:.3f}}{formatting.TIMES}</b><extra></extra>"
    text = f"{place if is_alone else '%{customdata}'}{hover}"
    cells = heatmap_by_step(steps, slowest, at, theme, text, ygap=1 if len(rows) <= 32 else 0)
    if not is_alone:
        cells["customdata"] = [
            [
                f"the slowest of dp {ranks[0]} to {ranks[-1]}, step {formatting.count(step)}"
                for step in column_steps(at)
            ]
            for ranks in rows
        ]
    return cells


def _dp_axis(rows: Sequence[range], theme: Theme) -> PlotlyAxis:
    shown = range(0, len(rows), 1 if _is_named(rows) else 8)
    dp = "dp " if _is_named(rows) else ""
    dp_axis = axis(
        theme,
        range=[len(rows) - 0.5, -0.5],
        tickvals=list(shown),
        ticktext=[f"{dp}{rows[at][0]}" for at in shown],
        ticklabelstandoff=4,
    )
    return dp_axis if dp else dp_axis | {"title": title("dp rank", theme)}


def _is_named(rows: Sequence[range]) -> bool:
    """Whether each row has its label."""
    return len(rows) <= 16


def _row_shares(rows: Sequence[range], share: Floats) -> tuple[list[float], float]:
    """The share of each row, and the largest of those that are known; 0 where none is."""
    shares = [float(share[list(ranks)].sum()) for ranks in rows]
    return shares, max(filter(np.isfinite, shares), default=0.0)


def _share_bars(rows: Sequence[range], share: Floats, theme: Theme) -> list[PlotlyShape]:
    """Beside the plot, in its right margin, so that the x axis stays that of the chart above."""
    shares, longest = _row_shares(rows, share)
    return [
        box((10, 10 + _BAR_PX * row_share / longest), (row - 0.28, row + 0.28), {"width": 0})
        | {"xref": "paper", "xsizemode": "pixel", "xanchor": 1, "fillcolor": theme.line2}
        for row, row_share in enumerate(shares)
        if longest > 0 and np.isfinite(row_share)
    ]


def _share_texts(rows: Sequence[range], share: Floats, theme: Theme) -> list[PlotlyAnnotation]:
    beside: PlotlyAnnotation = {"xref": "paper", "x": 1, "xanchor": "left"}
    head: PlotlyAnnotation = {"yref": "paper", "y": 1, "yanchor": "bottom", "xshift": 8}
    notes = [text_at(beside | head, "steps as slowest", theme.ink2)]
    shares, longest = _row_shares(rows, share)
    if longest and _is_named(rows):
        for row, row_share in enumerate(shares):
            place = beside | {"y": row, "xshift": 12 + _BAR_PX * row_share / longest}
            notes.append(text_at(place, formatting.percent(row_share), theme.ink2))
    return notes


def _dp_sentence(share: Floats, num_steps: int) -> str:
    if not np.isfinite(share).all():
        return "No step shown here has figures by dp rank."
    most, num_ranks = int(share.argmax()), int((share > 0).sum())
    over = f"Over {formatting.plural(num_steps, 'step')}"
    if num_ranks == 1:
        return f"{over}, dp {most} is the slowest in every one."
    return (
        f"{over}, {num_ranks} of {formatting.plural(share.size, 'dp rank')} were the slowest at "
        f"some time; dp {most} most often, in {formatting.percent(float(share[most]))} of "
        "the steps."
    )


MAX_WORKER_ROWS = 14

# A smaller excess over 1 is not visible in the colour scale.
_VISIBLE_EXCESS = 0.02


def worker_steps(
    steps: Sequence[int],
    worker_slowdown: Slowdowns,
    *,
    hosts: Hosts | None,
    theme: Theme,
    at: StepAxis | None = None,
    events: Sequence[StepEvent] = (),
) -> PlotlyFigure:
    """Heatmap of the slowest workers by step.

    `worker_slowdown` is [step, dp rank, stage], one entry per step of `steps` (ascending; they
    may come from several windows). `at` is the axis of the chart above, whose x positions both
    charts then have.
    """
    slowdown = np.asarray(worker_slowdown, dtype=np.float64)
    at = at or StepAxis.over(list(steps))
    rows = slowest_workers(slowdown)
    values = np.array([slowdown[:, dp, stage] for dp, stage in rows]).reshape(len(rows), len(steps))
    labels = [
        row_label(f"dp {dp} · s{stage}", (hosts or {}).get((dp, stage)), theme)
        for dp, stage in rows
    ]
    # The label of a row is that of its tick: a text per cell would be megabytes.
    hover = f"%{{y}}, step %{{customdata:,}}<br><b>%{{z:.3f}}{formatting.TIMES}</b><extra></extra>"
    return PlotlyFigure(
        data=[heatmap_by_step(steps, values, at, theme, hover)],
        layout=layout(
            theme,
            height_px=14 * len(rows) + 52 + at.clock_px,
            left_px=LEFT_PX,
            margin={"t": 4, "b": 44 + at.clock_px},
            xaxis=at.x_axis(theme, has_title=True),
            yaxis=row_axis(labels, theme),
            shapes=[*at.bands(theme), *event_lines(events, at, theme)],
        ),
        meta=meta(
            _worker_sentence(slowdown, rows, hosts),
            ["worker", *(f"step {formatting.count(step)}" for step in steps)],
            [
                [
                    formatting.worker(dp, stage, hosts),
                    *(formatting.measured(s, formatting.ratio) for s in slowdown[:, dp, stage]),
                ]
                for dp, stage in rows
            ],
            places=ItemsByAxis(
                x=at.along, y=AxisItems(what="worker", items=[[dp, stage] for dp, stage in rows])
            ),
            clock=at.clock,
            alike=_alike_sentence(slowdown),
        ),
    )


def _alike_sentence(slowdown: Floats) -> str:
    """That all cells have the colour of 1.00, of all workers and not only those drawn; else ""."""
    if not are_alike(slowdown, _VISIBLE_EXCESS):
        return ""
    num_steps, dp_size, pp_size = slowdown.shape
    steps = formatting.plural(num_steps, "step")
    workers = formatting.plural(dp_size * pp_size, "worker")
    limit = formatting.percent(_VISIBLE_EXCESS)
    return f"In all {steps}, none of {workers} alone would slow the step by more than {limit}."


def slowest_workers(slowdown: Floats) -> list[tuple[int, int]]:
    """The workers (dp rank, stage) with the highest mean slowdown, slowest first; 14 at most.

    Workers without visible excess come last, in the order of ranks.
    """
    num_known = np.isfinite(slowdown).sum(axis=0)
    total = np.nansum(slowdown, axis=0)
    mean = np.where(num_known > 0, total / np.maximum(num_known, 1), -np.inf)
    mean[(mean > -np.inf) & (mean <= 1 + _VISIBLE_EXCESS)] = 1.0
    order = np.argsort(-mean, axis=None, kind="stable")[:MAX_WORKER_ROWS]
    return [divmod(int(index), slowdown.shape[2]) for index in order]


def _worker_sentence(slowdown: Floats, rows: Sequence[tuple[int, int]], hosts: Hosts | None) -> str:
    if not rows or not slowdown.size:
        return "No step shown here has figures by worker."
    dp_rank, stage = rows[0]
    per_step = slowdown[:, dp_rank, stage]
    known = per_step[np.isfinite(per_step)]
    if not known.size:
        return "No worker is measured in the steps shown here."
    name = formatting.worker(dp_rank, stage, hosts)
    num_steps = formatting.plural(len(per_step), "step")
    low, high = formatting.ratio(known.min()), formatting.ratio(known.max())
    return (
        f"{name} is the slowest over {num_steps}: alone it would slow a step to between "
        f"{low} and {high} of its ideal."
    )
