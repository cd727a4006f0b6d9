"""Grid of a job's hosts, a row for each rack: the slowest worker of each host.

Faults of a host, a switch or a rack show as a cell, or a row; by dp rank and stage they are spread.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app import formatting
from app.charts.base.figure import (
    Cell,
    PlotlyFigure,
    axis,
    label_width_px,
    layout,
    meta,
    row_axis,
)
from app.charts.base.heatmap import Floats, Slowdowns, gap_px, heatmap
from app.charts.base.plotly import box
from app.charts.base.theme import Theme
from app.charts.worker.heatmap import MAX_OUTLINED, MAX_TABLE_ROWS
from app.formatting import Hosts

Worker = tuple[int, int]  # dp rank, stage
Racks = Mapping[Worker, str | None]

# Cells of a row: as many as a panel of 600 px shows, 8 px each, with its labels.
MAX_COLUMNS = 64
# More rows than these are no picture: racks then share rows.
MAX_ROWS = 64
_LABEL_CHARS = 14


@dataclass(frozen=True, slots=True)
class HostCell:
    """A host with its rack, its number of workers, and the slowest of them (dp rank, stage).

    `slowdown` is not finite, and `slowest` None, where none of its workers is measured, or
    `num_silent` of them send nothing: then medians stand in for them.
    """

    host: str
    rack: str | None
    num_workers: int
    num_silent: int
    slowest: Worker | None
    slowdown: float


def host_cells(
    slowdown: Floats, hosts: Hosts, racks: Racks, silent: Sequence[Worker] = ()
) -> list[HostCell]:
    """The hosts of slowdowns [dp rank, stage] by rack and name; hosts of unknown racks last."""
    workers_of: dict[str, list[Worker]] = defaultdict(list)
    for worker, host in sorted(hosts.items()):
        workers_of[host].append(worker)
    cells = []
    for host, workers in workers_of.items():
        num_silent = len(set(workers).intersection(silent))
        known = [] if num_silent else [at for at in workers if np.isfinite(slowdown[at])]
        slowest = max(known, key=lambda worker: float(slowdown[worker]), default=None)
        figure = np.nan if slowest is None else float(slowdown[slowest])
        rack = next((racks[worker] for worker in workers if racks.get(worker)), None)
        cells.append(HostCell(host, rack, len(workers), num_silent, slowest, figure))
    return sorted(cells, key=lambda cell: (cell.rack is None, cell.rack or "", cell.host))


def _rows(cells: Sequence[HostCell]) -> list[list[HostCell]]:
    """Cells by row: a rack in one row or several, unless that makes too many rows."""
    by_rack: dict[str | None, list[HostCell]] = defaultdict(list)
    for cell in cells:
        by_rack[cell.rack].append(cell)
    rows = [row for rack in by_rack.values() for row in _wrapped(rack, MAX_COLUMNS)]
    if len(rows) <= MAX_ROWS:
        return rows
    return _wrapped(cells, max(MAX_COLUMNS, -(-len(cells) // MAX_ROWS)))


def _wrapped(cells: Sequence[HostCell], width: int) -> list[list[HostCell]]:
    return [list(cells[at : at + width]) for at in range(0, len(cells), width)]


def host_grid(
    worker_slowdown: Slowdowns,
    *,
    hosts: Hosts,
    racks: Racks,
    theme: Theme,
    named: Sequence[Worker] | None = None,
    silent: Sequence[Worker] = (),
) -> PlotlyFigure:
    """Heatmap of hosts, each as slow as its slowest worker alone would make the job.

    `worker_slowdown` [dp rank][stage] is None or not finite where not measured; `racks` are as far
    as known. Hosts of `named` workers, those in findings, are outlined; hosts of `silent` ones have
    a cross.
    """
    slowdown = np.asarray(worker_slowdown, dtype=np.float64)
    inside = {
        worker: host
        for worker, host in hosts.items()
        if worker[0] < slowdown.shape[0] and worker[1] < slowdown.shape[1]
    }
    cells = host_cells(slowdown, inside, racks, silent)
    rows = _rows(cells)
    width = max(map(len, rows), default=1)
    values = np.full((len(rows), width), np.nan)
    hovers = [[""] * width for _ in rows]
    outlined: list[tuple[int, int]] = []
    unknown: list[tuple[int, int]] = []
    blamed = {inside[worker] for worker in named or () if worker in inside}
    for row, row_cells in enumerate(rows):
        for column, cell in enumerate(row_cells):
            values[row, column] = cell.slowdown
            hovers[row][column] = _hover(cell)
            if cell.slowest is None:
                unknown.append((column, row))
            if cell.host in blamed:
                outlined.append((column, row))
    labels = [_label(row) for row in rows]
    row_px = 26 if len(rows) <= 10 else max(8, 260 // len(rows))
    return PlotlyFigure(
        data=[
            heatmap(values, theme)
            | {
                "xgap": gap_px(width),
                "ygap": gap_px(max(width, len(rows))),
                "customdata": hovers,
                "hovertemplate": "%{customdata}<extra></extra>",
            },
            {
                "type": "scatter",
                "mode": "markers",
                "x": [column for column, _ in unknown],
                "y": [row for _, row in unknown],
                "customdata": [hovers[row][column] for column, row in unknown],
                "marker": {
                    "symbol": "x-thin",
                    "size": 7,
                    "line": {"color": theme.ink3, "width": 1},
                },
                "hovertemplate": "%{customdata}<extra></extra>",
            },
        ],
        layout=layout(
            theme,
            height_px=row_px * len(rows) + 24,
            left_px=label_width_px(labels),
            margin={"b": 16},
            xaxis=axis(theme, range=[-0.5, width - 0.5], tickvals=[], showline=False),
            yaxis=row_axis([f"{formatting.chart_label(label)} " for label in labels], theme),
            shapes=[
                box(
                    (column - 0.5, column + 0.5),
                    (row - 0.5, row + 0.5),
                    {"color": theme.ink, "width": 2},
                )
                for column, row in outlined[:MAX_OUTLINED]
            ],
        ),
        meta=meta(
            _sentence(cells, blamed),
            ["host", "rack", "workers", "slowest worker", "slowdown"],
            _table(cells),
            caption=f"The slowest {MAX_TABLE_ROWS} of {formatting.count(len(cells))} hosts."
            if len(cells) > MAX_TABLE_ROWS
            else "",
        ),
    )


def _label(row: Sequence[HostCell]) -> str:
    """The rack of a row, or its first host; the end of a long name."""
    racks = {cell.rack for cell in row}
    name = row[0].rack if len(racks) == 1 else None
    label = row[0].host if name is None else name
    return label if len(label) <= _LABEL_CHARS else f"\u2026{label[1 - _LABEL_CHARS :]}"


def _hover(cell: HostCell) -> str:
    rack = f", {formatting.chart_label(cell.rack)}" if cell.rack else ""
    name = f"{formatting.chart_label(cell.host)}{rack}"
    if cell.num_silent:
        workers = formatting.plural(cell.num_workers, "worker")
        return f"{name}<br><b>{cell.num_silent} of {workers} silent</b>"
    if cell.slowest is None:
        return f"{name}<br><b>not measured</b>"
    dp_rank, stage = cell.slowest
    which = "its worker" if cell.num_workers == 1 else f"the slowest of {cell.num_workers} workers"
    alone = formatting.ratio(cell.slowdown)
    return f"{name}<br>{which}, dp {dp_rank}, stage {stage}: <b>{alone}</b>"


def _sentence(cells: Sequence[HostCell], blamed: set[str]) -> str:
    known = [cell for cell in cells if cell.slowest is not None]
    slowest = max(known, key=lambda cell: (cell.host in blamed, cell.slowdown), default=None)
    number = formatting.plural(len(cells), "host")
    if slowest is None or slowest.slowest is None:
        return f"None of {number} is measured."
    worker = formatting.worker(*slowest.slowest)
    ratio = formatting.ratio(slowest.slowdown)
    host = formatting.bidi_isolated(slowest.host)
    named = "a finding names it" if slowest.host in blamed else "no finding names it"
    return f"Of {number}, {host}: {worker} alone would slow the job to {ratio}; {named}."


def _table(cells: Sequence[HostCell]) -> list[list[Cell]]:
    by_slowdown = sorted(cells, key=lambda cell: -np.nan_to_num(cell.slowdown, nan=-np.inf))
    return [
        [
            cell.host,
            cell.rack,
            cell.num_workers,
            None if cell.slowest is None else formatting.worker(*cell.slowest),
            formatting.measured(cell.slowdown, formatting.ratio),
        ]
        for cell in by_slowdown[:MAX_TABLE_ROWS]
    ]
