"""Which worker: the slowdown that each one alone would give the job, as a heatmap."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.charts import words
from app.charts.figure import Cell, Figure, axis, layout, meta, title
from app.charts.heatmap import gap_px, heatmap
from app.charts.theme import Theme
from app.charts.words import Hosts

Floats = NDArray[np.float64]

# Below this a worker looks like the ground, so pointing at it would point at noise.
MIN_CULPRIT_SLOWDOWN = 1.02

# A worker with this share of the slowest one's excess is about as slow.
_AS_SLOW = 0.67

# Values are written into cells that are about 40 px wide in the lead panel.
MAX_DP_WITH_VALUES = 16
MAX_DP_WITH_NAMES = 8

# Text of each cell is in its own trace of this name; the page drops it where cells are narrow.
VALUES = "values"

# Narrowest width the lead panel has on a desk; a marked cell stays 4 px wide there.
_PLOT_WIDTH_PX = 600
_MARK_WIDTH_PX = 4
_TOP_PX = 32
_TOP_WITHOUT_LABEL_PX = 8

# A table of a whole large job would outweigh its picture.
MAX_TABLE_ROWS = 500


def workers(worker_slowdown: ArrayLike, *, hosts: Hosts | None, theme: Theme) -> Figure:
    """Heatmap of worker slowdowns [dp rank, stage], the worst one outlined and named.

    Cells that are None or not finite are not measured and drawn as a cross.
    """
    slowdown = np.asarray(worker_slowdown, dtype=np.float64)
    culprit = _alone(slowdown, worst(slowdown))
    row_px = _row_px(slowdown.shape[1])
    top_px = _TOP_PX if culprit else _TOP_WITHOUT_LABEL_PX
    bottom_px = 28 if slowdown.shape[0] <= MAX_DP_WITH_NAMES else 44
    data = [heatmap(slowdown.T, theme, **_cells(slowdown, hosts)), _crosses(slowdown, theme)]
    if slowdown.shape[0] <= MAX_DP_WITH_VALUES:
        data.append(_values(slowdown, theme))
    shapes, notes = [], []
    if culprit:
        shapes = [_outline(slowdown, culprit, theme)]
        notes = [_callout(slowdown, culprit, row_px, hosts, theme)]
    told = meta(
        _sentence(slowdown, culprit, hosts),
        ["dp rank", "stage", "host", "slowdown"],
        _rows(slowdown, hosts),
    )
    if slowdown.size > MAX_TABLE_ROWS:
        told["table"]["caption"] = _caption(slowdown.size)
    return Figure(
        data=data,
        layout=layout(
            theme,
            height_px=top_px + row_px * slowdown.shape[1] + bottom_px,
            left_px=60,
            margin={"t": top_px, "b": bottom_px},
            xaxis=_dp_axis(slowdown.shape[0], theme),
            yaxis=_stage_axis(slowdown.shape[1], theme),
            shapes=shapes,
            annotations=notes,
        ),
        meta=told,
    )


def worst(slowdown: Floats) -> tuple[int, int] | None:
    """The slowest worker (dp rank, stage), or None when none stands out from the ground."""
    known = np.where(np.isfinite(slowdown), slowdown, -np.inf)
    if known.size == 0 or known.max() < MIN_CULPRIT_SLOWDOWN:
        return None
    dp_rank, stage = np.unravel_index(known.argmax(), known.shape)
    return int(dp_rank), int(stage)


def _alone(slowdown: Floats, slowest: tuple[int, int] | None) -> tuple[int, int] | None:
    """The slowest worker, unless most of its stage is about as slow: then nobody is to blame."""
    if slowest is None or slowdown.shape[0] < 2:
        return slowest
    others = np.delete(slowdown[:, slowest[1]], slowest[0])
    is_as_slow = others - 1 > _AS_SLOW * (slowdown[slowest] - 1)
    return None if is_as_slow.mean() >= 0.5 else slowest


def _cells(slowdown: Floats, hosts: Hosts | None) -> dict[str, Any]:
    dp_size, pp_size = slowdown.shape
    parts: dict[str, Any] = {
        "xgap": gap_px(dp_size),
        "ygap": gap_px(max(pp_size, dp_size)),
        "hovertemplate": _hover("dp %{x}, stage %{y}"),
    }
    if hosts:
        parts["customdata"] = [
            [words.markup(hosts.get((dp, stage), "host not known")) for dp in range(dp_size)]
            for stage in range(pp_size)
        ]
        parts["hovertemplate"] = _hover("dp %{x}, stage %{y}, %{customdata}")
    return parts


def _values(slowdown: Floats, theme: Theme) -> dict[str, Any]:
    # Plotly's own cell labels are grey on orange, below the contrast that text needs.
    dp_rank, stage = np.nonzero(np.isfinite(slowdown))
    known = [float(value) for value in slowdown[dp_rank, stage]]
    return {
        "type": "scatter",
        "mode": "text",
        "name": VALUES,
        "x": dp_rank.tolist(),
        "y": stage.tolist(),
        "text": [words.ratio(value) for value in known],
        "textfont": {"size": 11, "color": [theme.text_on(value) for value in known]},
        "hoverinfo": "skip",
    }


def _hover(who: str) -> str:
    return f"{who}<br><b>%{{z:.3f}}{words.TIMES}</b><extra></extra>"


def _crosses(slowdown: Floats, theme: Theme) -> dict[str, Any]:
    dp_rank, stage = np.nonzero(~np.isfinite(slowdown))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": dp_rank.tolist(),
        "y": stage.tolist(),
        "marker": {"symbol": "x-thin", "size": 7, "line": {"color": theme.ink3, "width": 1}},
        "hovertemplate": "dp %{x}, stage %{y}<br><b>not measured</b><extra></extra>",
    }


def _outline(slowdown: Floats, culprit: tuple[int, int], theme: Theme) -> dict[str, Any]:
    dp_rank, stage = culprit
    half = max(0.5, _MARK_WIDTH_PX / 2 * slowdown.shape[0] / _PLOT_WIDTH_PX)
    # A widened mark covers its neighbours, so it carries the colour itself.
    fill = theme.colour_at(float(slowdown[culprit])) if half > 0.5 else "rgba(0,0,0,0)"
    return {
        "type": "rect",
        "x0": dp_rank - half,
        "x1": dp_rank + half,
        "y0": stage - 0.5,
        "y1": stage + 0.5,
        "line": {"color": theme.ink, "width": 2},
        "fillcolor": fill,
    }


def _callout(
    slowdown: Floats, culprit: tuple[int, int], row_px: int, hosts: Hosts | None, theme: Theme
) -> dict[str, Any]:
    dp_rank, stage = culprit
    host = (hosts or {}).get(culprit)
    is_left = dp_rank < slowdown.shape[0] / 2
    name = words.markup(host) if host else words.worker(dp_rank, stage)
    # A line from the label would cross the values of the cells above.
    crosses_values = slowdown.shape[0] <= MAX_DP_WITH_VALUES and stage > 0
    place = (
        {"y": -0.5, "yanchor": "bottom", "showarrow": False}
        if crosses_values
        else {"y": stage - 0.5, "showarrow": True, "ay": -(stage * row_px + 16)}
    )
    return {
        "x": dp_rank,
        **place,
        "text": f"<b>{name}</b>, {words.ratio(float(slowdown[culprit]))}",
        "font": {"size": 12, "color": theme.ink},
        "arrowhead": 0,
        "arrowwidth": 1,
        "arrowcolor": theme.ink,
        "ax": 18 if is_left else -18,
        "xanchor": "left" if is_left else "right",
        "bgcolor": "rgba(0,0,0,0)",
        "borderpad": 1,
    }


def _row_px(pp_size: int) -> int:
    return 40 if pp_size <= 4 else 26 if pp_size <= 10 else max(8, 260 // pp_size)


def _dp_axis(dp_size: int, theme: Theme) -> dict[str, Any]:
    if dp_size <= MAX_DP_WITH_NAMES:
        ticks: dict[str, Any] = {
            "tickvals": list(range(dp_size)),
            "ticktext": [f"dp {dp}" for dp in range(dp_size)],
        }
    else:
        ticks = {"dtick": _tick_every(dp_size), "tick0": 0}
        ticks["title"] = title("data-parallel rank", theme)
    return axis(theme, range=[-0.5, dp_size - 0.5], **ticks)


def _stage_axis(pp_size: int, theme: Theme) -> dict[str, Any]:
    stages = range(0, pp_size, 1 if pp_size <= 16 else _tick_every(pp_size))
    return axis(
        theme,
        range=[pp_size - 0.5, -0.5],
        tickvals=list(stages),
        ticktext=[f"stage {stage} " for stage in stages],
    )


def _tick_every(size: int) -> int:
    """A power of two that leaves at most nine labels."""
    every = 1
    while size / every > 9:
        every *= 2
    return every


def _sentence(slowdown: Floats, culprit: tuple[int, int] | None, hosts: Hosts | None) -> str:
    if culprit is None:
        return _nobody(slowdown)
    alone = words.ratio(float(slowdown[culprit]))
    return f"{words.worker(*culprit, hosts)} alone would slow the job to {alone} of its ideal."


def _nobody(slowdown: Floats) -> str:
    slowest = worst(slowdown)
    if slowest is None:
        return f"None of {words.counted(slowdown.size, 'worker')} stands out."
    up_to = words.ratio(float(slowdown[slowest]))
    return (
        f"Most workers of stage {slowest[1]} are slow, each alone up to {up_to}; none stands out."
    )


def _rows(slowdown: Floats, hosts: Hosts | None) -> list[list[Cell]]:
    known = hosts or {}
    order = np.argsort(-np.nan_to_num(slowdown, nan=-np.inf), axis=None, kind="stable")
    return [
        [dp, stage, known.get((dp, stage)), _figure(float(slowdown[dp, stage]))]
        for dp, stage in (divmod(int(index), slowdown.shape[1]) for index in order[:MAX_TABLE_ROWS])
    ]


def _caption(num_workers: int) -> str:
    return f"The slowest {MAX_TABLE_ROWS} of {words.whole(num_workers)} workers."


def _figure(slowdown: float) -> str:
    return words.ratio(slowdown) if np.isfinite(slowdown) else words.NOT_MEASURED
