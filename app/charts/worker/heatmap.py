"""Heatmap of the slowdown that each worker alone would give the job.

Values stand in the cells, crosses where a worker is silent or not measured, and a mark and a label
at the culprits. Colours are those of `base/theme.py`.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from app import formatting
from app.charts.base.figure import Cell, FigureMeta, PlotlyFigure, layout, meta
from app.charts.base.heatmap import Slowdowns, gap_px, heatmap
from app.charts.base.plotly import PlotlyAnnotation, PlotlyShape, PlotlyTrace
from app.charts.base.theme import Theme
from app.charts.worker.grid import MAX_DP_WITH_NAMES, Sort, WorkerGrid, dp_axis, stage_axis
from app.formatting import Hosts

# Text of each cell is in its own trace of this name; the page drops it where cells are narrow.
VALUES_TRACE = "values"

# Narrowest width the lead panel has on a desk; a marked cell stays 4 px wide there.
_PLOT_WIDTH_PX = 600
_MARK_WIDTH_PX = 4

Worker = tuple[int, int]  # dp rank, stage


def value_texts(grid: WorkerGrid, theme: Theme, silent: Sequence[Worker] = ()) -> PlotlyTrace:
    """Each cell's slowdown as text, except where a cross is."""
    # Plotly's own cell labels are grey on orange, below the contrast that text needs.
    is_shown = np.isfinite(grid.values)
    for dp_rank, stage in silent:
        is_shown[grid.cell(dp_rank, stage)[::-1]] = False
    row, column = np.nonzero(is_shown)
    known = [float(value) for value in grid.values[row, column]]
    return {
        "type": "scatter",
        "mode": "text",
        "name": VALUES_TRACE,
        "x": column.tolist(),
        "y": row.tolist(),
        "text": [formatting.ratio(value) for value in known],
        "textfont": {"size": 11, "color": [theme.text_on(value) for value in known]},
        "hoverinfo": "skip",
    }


def crosses(grid: WorkerGrid, silent: Sequence[Worker], theme: Theme) -> PlotlyTrace:
    """A cross where nothing is measured, and on workers that send nothing any more."""
    row, column = np.nonzero(~np.isfinite(grid.values))
    rank = [grid.columns[at][0] for at in column.tolist()]
    stage = [grid.rows[at][0] for at in row.tolist()]
    cells = [*zip(column.tolist(), row.tolist(), strict=True)]
    who = [
        f"{formatting.worker(*each)}<br><b>not measured</b>"
        for each in zip(rank, stage, strict=True)
        if each not in silent
    ]
    cells = [
        cell
        for cell, each in zip(cells, zip(rank, stage, strict=True), strict=True)
        if each not in silent
    ]
    cells += [grid.cell(*each) for each in silent]
    who += [f"{formatting.worker(*each)}<br><b>silent</b>" for each in silent]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [column for column, _ in cells],
        "y": [row for _, row in cells],
        "customdata": who,
        "marker": {"symbol": "x-thin", "size": 7, "line": {"color": theme.ink3, "width": 1}},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def outline(grid: WorkerGrid, culprit: Worker, slowdown: float, theme: Theme) -> PlotlyShape:
    """A line around the culprit's cell, which is never too narrow to be seen."""
    column, row = grid.cell(*culprit)
    half = max(0.5, _MARK_WIDTH_PX / 2 * len(grid.columns) / _PLOT_WIDTH_PX)
    # A widened mark covers its neighbours, so it carries the colour itself.
    fill = theme.colour_at(slowdown) if half > 0.5 else "rgba(0,0,0,0)"
    return {
        "type": "rect",
        "x0": column - half,
        "x1": column + half,
        "y0": row - 0.5,
        "y1": row + 0.5,
        "line": {"color": theme.ink, "width": 2},
        "fillcolor": fill,
    }


def callout(
    grid: WorkerGrid,
    culprit: Worker,
    slowdown: float,
    *,
    num_others: int,
    row_px: int,
    has_values: bool,
    hosts: Hosts | None,
    theme: Theme,
) -> PlotlyAnnotation:
    """A label above the plot with the culprit's host, and a line from it to the cell.

    Of several culprits it is the slowest one's, and counts the others.
    """
    column, row = grid.cell(*culprit)
    host = (hosts or {}).get(culprit)
    more = f" and {formatting.count(num_others)} more" if num_others else ""
    is_left = column < len(grid.columns) / 2
    name = formatting.chart_label(host) if host else formatting.worker(*culprit)
    # A line from the label would cross the values of the cells above.
    place: PlotlyAnnotation = (
        {"y": -0.5, "yanchor": "bottom", "showarrow": False}
        if has_values and row > 0
        else {"y": row - 0.5, "showarrow": True, "ay": -(row * row_px + 16)}
    )
    return {
        "x": column,
        **place,
        "text": f"<b>{name}</b>, {formatting.ratio(slowdown)}{more}",
        "font": {"size": 12, "color": theme.ink},
        "arrowhead": 0,
        "arrowwidth": 1,
        "arrowcolor": theme.ink,
        "ax": 18 if is_left else -18,
        "xanchor": "left" if is_left else "right",
        "bgcolor": "rgba(0,0,0,0)",
        "borderpad": 1,
    }


Floats = NDArray[np.float64]

# A smaller excess is not visible, so marking the worker would mark noise.
MIN_CULPRIT_SLOWDOWN = 1.02

# A worker with this share of the slowest one's excess is about as slow.
_AS_SLOW = 0.67

# Values are written into cells that are about 40 px wide in the lead panel.
MAX_DP_WITH_VALUES = 16
_TOP_PX = 32
_TOP_WITHOUT_LABEL_PX = 8

# More outlines would be a pattern of their own.
MAX_OUTLINED = 32

# A table of a whole large job would outweigh its picture.
MAX_TABLE_ROWS = 500


def worker_heatmap(
    worker_slowdown: Slowdowns,
    *,
    hosts: Hosts | None,
    theme: Theme,
    sort: Sort = "rank",
    silent: Sequence[tuple[int, int]] = (),
    named: Sequence[tuple[int, int]] | None = None,
) -> PlotlyFigure:
    """Heatmap of worker slowdowns [dp rank, stage], who is to blame outlined and named.

    That are the workers (dp rank, stage) in `named`; without a diagnosis (None), it
    is the slowest one, unless most of its stage is about as slow. Columns are in the order of dp
    ranks, of their hosts' names, or of their slowest workers. Cells that are None or not finite
    are not measured and drawn as a cross; `silent` workers have one over their colour. Of large
    jobs several workers share a cell, which shows the slowest.
    """
    slowdown = np.asarray(worker_slowdown, dtype=np.float64)
    grid = WorkerGrid.of(slowdown, sort, hosts)
    culprits = _culprits(slowdown, named)
    culprit = culprits[0] if culprits else None
    row_px = _row_px(len(grid.rows))
    top_px = _TOP_PX if culprit else _TOP_WITHOUT_LABEL_PX
    is_named = len(grid.columns) <= MAX_DP_WITH_NAMES and sort != "host"
    bottom_px = 28 if is_named else 44
    has_values = len(grid.columns) <= MAX_DP_WITH_VALUES
    data = [heatmap(grid.values, theme) | _cells(grid, hosts), crosses(grid, silent, theme)]
    if has_values:
        data.append(value_texts(grid, theme, silent))
    shapes: list[PlotlyShape] = []
    notes: list[PlotlyAnnotation] = []
    if culprit:
        alone = float(slowdown[culprit])
        shapes = [outline(grid, each, float(slowdown[each]), theme) for each in culprits]
        notes = [
            callout(
                grid, culprit, alone,
                num_others=len(culprits) - 1,
                row_px=row_px, has_values=has_values, hosts=hosts, theme=theme,
            )
        ]  # fmt: skip
    figure_meta = _meta(slowdown, grid, _sentence(slowdown, culprits, hosts, named), hosts)
    if not culprits and not silent and _is_alike(slowdown):
        figure_meta["alike"] = _alike_sentence(slowdown.size)
    return PlotlyFigure(
        data=data,
        layout=layout(
            theme,
            height_px=top_px + row_px * len(grid.rows) + bottom_px,
            left_px=60,
            margin={"t": top_px, "b": bottom_px},
            xaxis=dp_axis(grid, sort, hosts, theme),
            yaxis=stage_axis(grid, theme),
            shapes=shapes,
            annotations=notes,
        ),
        meta=figure_meta,
    )


def slowest_worker(slowdown: Floats) -> tuple[int, int] | None:
    """The slowest worker (dp rank, stage); None if no excess is visible."""
    known = np.where(np.isfinite(slowdown), slowdown, -np.inf)
    if known.size == 0 or known.max() < MIN_CULPRIT_SLOWDOWN:
        return None
    dp_rank, stage = np.unravel_index(known.argmax(), known.shape)
    return int(dp_rank), int(stage)


def _culprits(slowdown: Floats, named: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """Workers to outline, the slowest first."""
    if named is None:
        alone = _unless_common(slowdown, slowest_worker(slowdown))
        return [] if alone is None else [alone]
    known = [each for each in named if np.isfinite(slowdown[each])]
    return sorted(known, key=lambda each: (-slowdown[each], each))[:MAX_OUTLINED]


def _unless_common(slowdown: Floats, slowest: tuple[int, int] | None) -> tuple[int, int] | None:
    """The slowest worker, unless most of its stage is about as slow."""
    if slowest is None or slowdown.shape[0] < 2:
        return slowest
    others = np.delete(slowdown[:, slowest[1]], slowest[0])
    is_as_slow = others - 1 > _AS_SLOW * (slowdown[slowest] - 1)
    return None if is_as_slow.mean() >= 0.5 else slowest


def _meta(slowdown: Floats, grid: WorkerGrid, sentence: str, hosts: Hosts | None) -> FigureMeta:
    figure_meta = meta(
        sentence,
        ["dp rank", "stage", "host", "slowdown"],
        _rows(slowdown, hosts),
    )
    figure_meta["places"] = grid.places
    if slowdown.size > MAX_TABLE_ROWS:
        figure_meta["table"]["caption"] = _caption(slowdown.size)
    return figure_meta


# Closer than this to 1, all values read 1.00 or 1.01.
_ALIKE = 0.01


def _is_alike(slowdown: Floats) -> bool:
    """Whether a grid of these values would show the same in every cell."""
    is_near = np.abs(slowdown - 1) <= _ALIKE
    return slowdown.size > 1 and bool(np.isfinite(slowdown).all() and is_near.all())


def _alike_sentence(num_workers: int) -> str:
    workers, limit = formatting.plural(num_workers, "worker"), formatting.percent(_ALIKE)
    return f"All {workers} are alike: none alone would slow the job by more than {limit}."


def _cells(grid: WorkerGrid, hosts: Hosts | None) -> PlotlyTrace:
    num_rows, num_columns = grid.values.shape
    parts: PlotlyTrace = {
        "xgap": gap_px(num_columns),
        "ygap": gap_px(max(num_rows, num_columns)),
        "hovertemplate": _hover("dp %{x}, stage %{y}"),
    }
    if hosts or grid.is_thinned or not grid.is_by_rank:
        host = _host_names(hosts or {})
        parts["customdata"] = [
            [_cell_name(ranks, stages, host if hosts else None) for ranks in grid.columns]
            for stages in grid.rows
        ]
        parts["hovertemplate"] = _hover("%{customdata}")
    return parts


def _host_names(hosts: Hosts) -> Callable[[int, int], str]:
    """Labels of the workers' hosts; each name is escaped once."""
    marked = cache(formatting.chart_label)

    def name(dp_rank: int, stage: int) -> str:
        found = hosts.get((dp_rank, stage))
        return marked(found) if found else "host not known"

    return name


def _cell_name(
    ranks: tuple[int, ...], stages: range, host: Callable[[int, int], str] | None
) -> str:
    if len(ranks) == 1 and len(stages) == 1:
        name = f"dp {ranks[0]}, stage {stages[0]}"
        return name if host is None else f"{name}, {host(ranks[0], stages[0])}"
    return f"the slowest of dp {_number_list(ranks)}, stage {_number_list(stages)}"


def _number_list(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(each) for each in numbers[:4]) + (" ..." if len(numbers) > 4 else "")


def _hover(who: str) -> str:
    return f"{who}<br><b>%{{z:.3f}}{formatting.TIMES}</b><extra></extra>"


def _row_px(num_rows: int) -> int:
    return 40 if num_rows <= 4 else 26 if num_rows <= 10 else max(8, 260 // num_rows)


def _sentence(
    slowdown: Floats,
    culprits: Sequence[tuple[int, int]],
    hosts: Hosts | None,
    named: Sequence[tuple[int, int]] | None,
) -> str:
    if culprits:
        return f"{_would_slow(slowdown, culprits[0], hosts)} of its ideal."
    slowest = slowest_worker(slowdown)
    if slowest is None:
        return f"None of {formatting.plural(slowdown.size, 'worker')} stands out."
    if named is None or _unless_common(slowdown, slowest) is None:
        up_to = formatting.ratio(float(slowdown[slowest]))
        return (
            f"Most workers of stage {slowest[1]} are slow, each alone up to {up_to}; "
            "none stands out."
        )
    return f"{_would_slow(slowdown, slowest, hosts)}; no finding names it."


def _would_slow(slowdown: Floats, worker: tuple[int, int], hosts: Hosts | None) -> str:
    alone = formatting.ratio(float(slowdown[worker]))
    return f"{formatting.worker(*worker, hosts)} alone would slow the job to {alone}"


def _rows(slowdown: Floats, hosts: Hosts | None) -> list[list[Cell]]:
    known = hosts or {}
    order = np.argsort(-np.nan_to_num(slowdown, nan=-np.inf), axis=None, kind="stable")
    return [
        [dp, stage, known.get((dp, stage)), _slowdown_text(float(slowdown[dp, stage]))]
        for dp, stage in (divmod(int(index), slowdown.shape[1]) for index in order[:MAX_TABLE_ROWS])
    ]


def _caption(num_workers: int) -> str:
    return f"The slowest {MAX_TABLE_ROWS} of {formatting.count(num_workers)} workers."


def _slowdown_text(slowdown: float) -> str:
    return formatting.ratio(slowdown) if np.isfinite(slowdown) else formatting.NOT_MEASURED
