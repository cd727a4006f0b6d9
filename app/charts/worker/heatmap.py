"""Heatmap of the slowdown that each worker alone would give the job.

Values stand in the cells, crosses where a worker is silent or not measured, and a mark and a label
at the culprits. Of jobs with more workers than cells, each cell shows the slowest of several.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app import formatting
from app.charts.base.figure import (
    AxisItems,
    Cell,
    ItemsByAxis,
    PlotlyFigure,
    axis,
    layout,
    meta,
    title,
)
from app.charts.base.heatmap import Floats, Slowdowns, are_alike, gap_px, heatmap
from app.charts.base.plotly import PlotlyAnnotation, PlotlyAxis, PlotlyShape, PlotlyTrace, box
from app.charts.base.theme import Theme
from app.formatting import Hosts

Sort = Literal["rank", "host", "slowdown", "rack"]  # rack: see host_grid.py

# More cells than pixels would be lost by chance; these show the slowest worker of each.
MAX_COLUMNS = 1024
MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class WorkerGrid:
    """Which dp ranks share a column, which stages a row, and the slowest worker of each cell.

    `values` [row, column], not finite where no worker of a cell is measured.
    """

    columns: tuple[tuple[int, ...], ...]
    rows: tuple[range, ...]
    values: Floats

    @classmethod
    def of(cls, slowdown: Floats, sort: Sort = "rank", hosts: Hosts | None = None) -> "WorkerGrid":
        """The grid of slowdowns [dp rank, stage]."""
        dp_size, pp_size = slowdown.shape
        order = _column_order(slowdown, sort, hosts)
        width, height = -(-dp_size // MAX_COLUMNS), -(-pp_size // MAX_ROWS)
        first_of_column, first_of_row = range(0, dp_size, width), range(0, pp_size, height)
        # Unmeasured cells come last.
        by_column = np.fmax.reduceat(slowdown[order], list(first_of_column), axis=0)
        values = np.fmax.reduceat(by_column, list(first_of_row), axis=1).T
        return cls(
            columns=tuple(tuple(order[at : at + width].tolist()) for at in first_of_column),
            rows=tuple(range(at, min(at + height, pp_size)) for at in first_of_row),
            values=np.ascontiguousarray(values),
        )

    @property
    def is_thinned(self) -> bool:
        """Whether cells hold several workers."""
        return len(self.columns[0]) > 1 or len(self.rows[0]) > 1

    @property
    def is_by_rank(self) -> bool:
        """Whether the column's number is its dp rank."""
        return all(ranks == (at,) for at, ranks in enumerate(self.columns))

    @property
    def places(self) -> ItemsByAxis:
        """Workers along the axes, for finding the one under the pointer."""
        return ItemsByAxis(
            x=AxisItems(what="dp", items=[_axis_item(ranks) for ranks in self.columns]),
            y=AxisItems(what="stage", items=[_axis_item(stages) for stages in self.rows]),
        )

    def cell(self, dp_rank: int, stage: int) -> tuple[int, int]:
        """Column and row of a worker."""
        column = next(at for at, ranks in enumerate(self.columns) if dp_rank in ranks)
        return column, stage // len(self.rows[0])


def _axis_item(numbers: tuple[int, ...] | range) -> int | list[int]:
    return numbers[0] if len(numbers) == 1 else list(numbers)


def _column_order(slowdown: Floats, sort: Sort, hosts: Hosts | None) -> NDArray[np.int64]:
    """[dp rank] dp ranks in the order of their columns."""
    dp_size, pp_size = slowdown.shape
    if sort == "slowdown":
        worst = np.fmax.reduce(slowdown, axis=1)
        return np.argsort(-np.nan_to_num(worst, nan=-np.inf), kind="stable")
    if sort == "host" and hosts:
        # "~" is after every name: ranks of unknown hosts come last.
        named = [[hosts.get((dp, stage), "~") for stage in range(pp_size)] for dp in range(dp_size)]
        return np.array(sorted(range(dp_size), key=lambda dp: (named[dp], dp)))
    return np.arange(dp_size)


MAX_DP_WITH_NAMES = 8
# A host's name needs some 60 px under its column.
MAX_HOSTS_NAMED = 6
_MAX_HOST_CHARS = 14


def dp_axis(grid: WorkerGrid, sort: Sort, hosts: Hosts | None, theme: Theme) -> PlotlyAxis:
    """Dp ranks in the order of their columns, or their hosts."""
    first_ranks = [ranks[0] for ranks in grid.columns]
    ends = [-0.5, len(first_ranks) - 0.5]
    if sort == "host" and hosts:
        every = -(-len(first_ranks) // MAX_HOSTS_NAMED)
        names = [_host_of(rank, grid, hosts) for rank in first_ranks[::every]]
        heading = "host, of the first stage, by name"
    elif len(first_ranks) <= MAX_DP_WITH_NAMES:
        names = [f"dp {rank}" for rank in first_ranks]
        return axis(theme, range=ends, tickvals=list(range(len(names))), ticktext=names)
    else:
        every = _tick_every(len(first_ranks))
        names = [str(rank) for rank in first_ranks[::every]]
        heading = f"data-parallel rank{', the slowest first' if sort == 'slowdown' else ''}"
    ticks = list(range(0, len(first_ranks), every))
    return axis(theme, range=ends, tickvals=ticks, ticktext=names, title=title(heading, theme))


def _host_of(dp_rank: int, grid: WorkerGrid, hosts: Hosts) -> str:
    name = hosts.get((dp_rank, grid.rows[0][0]))
    return formatting.chart_label(name, max_chars=_MAX_HOST_CHARS) if name else "not known"


def stage_axis(grid: WorkerGrid, theme: Theme) -> PlotlyAxis:
    """Stages from 0 down."""
    num_rows = len(grid.rows)
    shown = range(0, num_rows, 1 if num_rows <= 16 else _tick_every(num_rows))
    return axis(
        theme,
        range=[num_rows - 0.5, -0.5],
        tickvals=list(shown),
        ticktext=[f"stage {grid.rows[at][0]} " for at in shown],
    )


def _tick_every(size: int) -> int:
    """A power of two that leaves at most nine labels."""
    every = 1
    while size / every > 9:
        every *= 2
    return every


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
    marked = [
        ((column, row), (grid.columns[column][0], grid.rows[row][0]), "not measured")
        for row, column in np.argwhere(~np.isfinite(grid.values)).tolist()
    ]
    marked = [mark for mark in marked if mark[1] not in silent]
    marked += [(grid.cell(*worker), worker, "silent") for worker in silent]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [column for (column, _), _, _ in marked],
        "y": [row for (_, row), _, _ in marked],
        "customdata": [
            f"{formatting.worker(*worker)}<br><b>{why}</b>" for _, worker, why in marked
        ],
        "marker": {"symbol": "x-thin", "size": 7, "line": {"color": theme.ink3, "width": 1}},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _outline(grid: WorkerGrid, culprit: Worker, slowdown: float, theme: Theme) -> PlotlyShape:
    """A line around the culprit's cell, which is never too narrow to be seen."""
    column, row = grid.cell(*culprit)
    half = max(0.5, _MARK_WIDTH_PX / 2 * len(grid.columns) / _PLOT_WIDTH_PX)
    # A widened mark covers its neighbours, so it carries the colour itself.
    fill = theme.colour_at(slowdown) if half > 0.5 else "rgba(0,0,0,0)"
    return box(
        (column - half, column + half), (row - 0.5, row + 0.5), {"color": theme.ink, "width": 2}
    ) | {"fillcolor": fill}


def _callout_text(slowdown: Floats, culprits: Sequence[Worker], hosts: Hosts | None) -> str:
    """The host of the slowest culprit, and the number of the others."""
    host = (hosts or {}).get(culprits[0])
    name = formatting.chart_label(host) if host else formatting.worker(*culprits[0])
    more = f" and {formatting.count(len(culprits) - 1)} more" if len(culprits) > 1 else ""
    return f"<b>{name}</b>, {formatting.ratio(float(slowdown[culprits[0]]))}{more}"


def _callout(
    grid: WorkerGrid, culprit: Worker, text: str, row_px: int, theme: Theme, *, has_values: bool
) -> PlotlyAnnotation:
    """A label above the plot, and a line from it to the culprit's cell."""
    column, row = grid.cell(*culprit)
    is_left = column < len(grid.columns) / 2
    # A line from the label would cross the values of the cells above.
    place: PlotlyAnnotation = (
        {"y": -0.5, "yanchor": "bottom", "showarrow": False}
        if has_values and row > 0
        else {"y": row - 0.5, "showarrow": True, "ay": -(row * row_px + 16)}
    )
    return {
        "x": column,
        **place,
        "text": text,
        "font": {"size": 12, "color": theme.ink},
        "arrowhead": 0,
        "arrowwidth": 1,
        "arrowcolor": theme.ink,
        "ax": 18 if is_left else -18,
        "xanchor": "left" if is_left else "right",
        "bgcolor": "rgba(0,0,0,0)",
        "borderpad": 1,
    }


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
    silent: Sequence[Worker] = (),
    named: Sequence[Worker] | None = None,
) -> PlotlyFigure:
    """Heatmap of worker slowdowns [dp rank, stage], with the culprits outlined and named.

    Culprits are the workers (dp rank, stage) in `named`; without a diagnosis (None), it
    is the slowest one, unless most of its stage is about as slow. Columns are in the order of dp
    ranks, of their hosts' names, or of their slowest workers. Cells that are None or not finite
    are not measured and drawn as a cross; `silent` workers have one over their colour. Of large
    jobs several workers share a cell, which shows the slowest.
    """
    slowdown = np.asarray(worker_slowdown, dtype=np.float64)
    grid = WorkerGrid.of(slowdown, sort, hosts)
    culprits = _culprits(slowdown, named)
    num_rows = len(grid.rows)
    row_px = 40 if num_rows <= 4 else 26 if num_rows <= 10 else max(8, 260 // num_rows)
    top_px = _TOP_PX if culprits else _TOP_WITHOUT_LABEL_PX
    is_named = len(grid.columns) <= MAX_DP_WITH_NAMES and sort != "host"
    bottom_px = 28 if is_named else 44
    has_values = len(grid.columns) <= MAX_DP_WITH_VALUES
    data = [heatmap(grid.values, theme) | _cells(grid, hosts), crosses(grid, silent, theme)]
    if has_values:
        data.append(value_texts(grid, theme, silent))
    caption = f"The slowest {MAX_TABLE_ROWS} of {formatting.count(slowdown.size)} workers."
    callouts = []
    if culprits:
        text = _callout_text(slowdown, culprits, hosts)
        callouts = [_callout(grid, culprits[0], text, row_px, theme, has_values=has_values)]
    return PlotlyFigure(
        data=data,
        layout=layout(
            theme,
            height_px=top_px + row_px * num_rows + bottom_px,
            left_px=60,
            margin={"t": top_px, "b": bottom_px},
            xaxis=dp_axis(grid, sort, hosts, theme),
            yaxis=stage_axis(grid, theme),
            shapes=[_outline(grid, worker, float(slowdown[worker]), theme) for worker in culprits],
            annotations=callouts,
        ),
        meta=meta(
            _sentence(slowdown, culprits, hosts, named),
            ["dp rank", "stage", "host", "slowdown"],
            _rows(slowdown, hosts),
            caption=caption if slowdown.size > MAX_TABLE_ROWS else "",
            places=grid.places,
            alike="" if culprits or silent else _alike_sentence(slowdown),
        ),
    )


def slowest_worker(slowdown: Floats) -> Worker | None:
    """The slowest worker (dp rank, stage); None if no excess is visible."""
    known = np.where(np.isfinite(slowdown), slowdown, -np.inf)
    if known.size == 0 or known.max() < MIN_CULPRIT_SLOWDOWN:
        return None
    dp_rank, stage = np.unravel_index(known.argmax(), known.shape)
    return int(dp_rank), int(stage)


def _culprits(slowdown: Floats, named: Sequence[Worker] | None) -> list[Worker]:
    """Workers to outline, the slowest first."""
    if named is None:
        alone = _unless_common(slowdown, slowest_worker(slowdown))
        return [] if alone is None else [alone]
    known = [worker for worker in named if np.isfinite(slowdown[worker])]
    return sorted(known, key=lambda worker: (-slowdown[worker], worker))[:MAX_OUTLINED]


def _unless_common(slowdown: Floats, slowest: Worker | None) -> Worker | None:
    """The slowest worker, unless most of its stage is about as slow."""
    if slowest is None or slowdown.shape[0] < 2:
        return slowest
    others = np.delete(slowdown[:, slowest[1]], slowest[0])
    is_as_slow = others - 1 > _AS_SLOW * (slowdown[slowest] - 1)
    return None if is_as_slow.mean() >= 0.5 else slowest


# Closer than this to 1, all values read 1.00 or 1.01.
_ALIKE = 0.01


def _alike_sentence(slowdown: Floats) -> str:
    """That a grid of these values would show the same in every cell; "" if it would not."""
    if not are_alike(slowdown, _ALIKE):
        return ""
    workers, limit = formatting.plural(slowdown.size, "worker"), formatting.percent(_ALIKE)
    return f"All {workers} are alike: none alone would slow the job by more than {limit}."


def _cells(grid: WorkerGrid, hosts: Hosts | None) -> PlotlyTrace:
    num_rows, num_columns = grid.values.shape
    parts: PlotlyTrace = {
        "xgap": gap_px(num_columns),
        "ygap": gap_px(max(num_rows, num_columns)),
        "hovertemplate": _hover("dp %{x}, stage %{y}"),
    }
    if hosts or grid.is_thinned or not grid.is_by_rank:
        escaped = cache(formatting.chart_label)  # one host has several workers
        labels = {worker: escaped(host) for worker, host in (hosts or {}).items() if host}
        parts["customdata"] = [
            [_cell_name(ranks, stages, labels if hosts else None) for ranks in grid.columns]
            for stages in grid.rows
        ]
        parts["hovertemplate"] = _hover("%{customdata}")
    return parts


def _cell_name(ranks: tuple[int, ...], stages: range, labels: dict[Worker, str] | None) -> str:
    if len(ranks) == 1 and len(stages) == 1:
        worker = ranks[0], stages[0]
        name = f"dp {ranks[0]}, stage {stages[0]}"
        return name if labels is None else f"{name}, {labels.get(worker, 'host not known')}"
    return f"the slowest of dp {_number_list(ranks)}, stage {_number_list(stages)}"


def _number_list(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(number) for number in numbers[:4]) + (" ..." if len(numbers) > 4 else "")


def _hover(place: str) -> str:
    return f"{place}<br><b>%{{z:.3f}}{formatting.TIMES}</b><extra></extra>"


def _sentence(
    slowdown: Floats,
    culprits: Sequence[Worker],
    hosts: Hosts | None,
    named: Sequence[Worker] | None,
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


def _would_slow(slowdown: Floats, worker: Worker, hosts: Hosts | None) -> str:
    alone = formatting.ratio(float(slowdown[worker]))
    return f"{formatting.worker(*worker, hosts)} alone would slow the job to {alone}"


def _rows(slowdown: Floats, hosts: Hosts | None) -> list[list[Cell]]:
    order = np.argsort(-np.nan_to_num(slowdown, nan=-np.inf), axis=None, kind="stable")
    rows: list[list[Cell]] = []
    for index in order[:MAX_TABLE_ROWS].tolist():
        worker = divmod(index, slowdown.shape[1])
        figure = formatting.measured(slowdown[worker], formatting.ratio)
        rows.append([*worker, (hosts or {}).get(worker), figure])
    return rows
