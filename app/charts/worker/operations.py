"""A worker's operations, type by type, against the distribution of its peers' operations."""

from collections.abc import Sequence

from app import formatting
from app.charts.base.figure import (
    Cell,
    PlotlyFigure,
    axis,
    label_width_px,
    layout,
    meta,
    numbers,
    row_axis,
    title,
)
from app.charts.base.plotly import (
    PlotlyAnnotation,
    PlotlyMarker,
    PlotlyTrace,
    line_between,
    text_at,
)
from app.charts.base.theme import Theme
from app.engine.questions.worker_operations import WorkerOpTimes

_MAX_ROWS = 14
_ROW_PX = 26
# Least and largest end of the axis; points beyond are drawn at its end.
_MIN_RANGE, _MAX_RANGE = 1.6, 4.0
_VALUE_PX = 64
_MAX_NAME_CHARS = 32


def worker_operations(times: Sequence[WorkerOpTimes], name: str, *, theme: Theme) -> PlotlyFigure:
    """Own median and 95th percentile over the middle half of the peers, all by their median."""
    rows = [row for row in times if _peers_median_s(row) > 0][:_MAX_ROWS]
    low, high = _range(rows)
    labels = [f"{_name(row)}  " for row in rows]
    filled: PlotlyMarker = {"symbol": "circle", "size": 9, "color": theme.rec}
    hollow: PlotlyMarker = filled | {"symbol": "circle-open", "line": {"width": 1.5}}
    return PlotlyFigure(
        data=[
            _peers(rows, low, high, theme),
            _points(rows, "own 95th percentile", [row.p95_s for row in rows], high, hollow),
            _points(rows, "own median", [row.median_s for row in rows], high, filled),
        ],
        layout=layout(
            theme,
            height_px=_ROW_PX * max(len(rows), 1) + 8 + 44,
            left_px=label_width_px(labels),
            margin={"r": _VALUE_PX, "b": 44},
            bargap=0,
            xaxis=axis(
                theme,
                range=[low, high],
                showgrid=True,
                dtick=0.5 if high - low < 2 else 1,
                tick0=1,
                ticksuffix=formatting.TIMES,
                title=title("times the peers' median", theme),
            ),
            yaxis=row_axis(labels, theme),
            shapes=[
                line_between((1, 1), (0, 1), {"color": theme.ok, "width": 2}) | {"yref": "paper"}
            ],
            annotations=[_value(at, row, theme) for at, row in enumerate(rows)],
        ),
        meta=meta(
            _sentence(times, rows, name),
            ["operation", "number", "own median", "own 95 %", "peers 25 %", "50 %", "75 %"],
            [_row(row) for row in times],
        ),
    )


def _peers_median_s(row: WorkerOpTimes) -> float:
    return row.peers_s[1] if row.peers_s else 0.0


def _name(row: WorkerOpTimes) -> str:
    return formatting.chart_label(formatting.optype_label(row.optype), max_chars=_MAX_NAME_CHARS)


def _ratio(row: WorkerOpTimes, value_s: float) -> float:
    return value_s / _peers_median_s(row)


def _range(rows: Sequence[WorkerOpTimes]) -> tuple[float, float]:
    ratios = [_ratio(row, value) for row in rows for value in (row.median_s, row.p95_s)]
    quartiles = [_ratio(row, value) for row in rows for value in row.peers_s or ()]
    low, high = min([0.8, *ratios, *quartiles]), max([_MIN_RANGE, *(1.06 * r for r in ratios)])
    return max(0.0, low - 0.05), min(_MAX_RANGE, high)


def _peers(rows: Sequence[WorkerOpTimes], low: float, high: float, theme: Theme) -> PlotlyTrace:
    held: list[tuple[float, float]] = []
    hover_texts: list[str] = []
    for row in rows:
        first_s, _, last_s = row.peers_s or (0.0, 0.0, 0.0)
        held.append((max(low, _ratio(row, first_s)), min(high, _ratio(row, last_s))))
        hover_texts.append(
            f"{_name(row)}, the middle half of the peers<br>"
            f"<b>{formatting.seconds(first_s)} to {formatting.seconds(last_s)}</b>"
        )
    return {
        "type": "bar",
        "orientation": "h",
        "name": "peers, middle half",
        "base": numbers([first for first, _ in held]),
        # A sliver still shows where the peers are.
        "x": numbers([max(last - first, 0.004 * (high - low)) for first, last in held]),
        "y": list(range(len(rows))),
        "width": 0.5,
        "marker": {"color": theme.line2, "line": {"width": 0}},
        "customdata": hover_texts,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _points(
    rows: Sequence[WorkerOpTimes],
    name: str,
    values_s: Sequence[float],
    high: float,
    marker: PlotlyMarker,
) -> PlotlyTrace:
    ratios = [_ratio(row, value_s) for row, value_s in zip(rows, values_s, strict=True)]
    hover_texts = [
        f"{_name(row)}, {name}<br><b>{formatting.seconds(value_s)}</b>, "
        f"{formatting.ratio(ratio)} of the peers' median"
        for row, value_s, ratio in zip(rows, values_s, ratios, strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": numbers([min(ratio, high) for ratio in ratios]),
        "y": list(range(len(rows))),
        "marker": marker,
        "cliponaxis": False,
        "customdata": hover_texts,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _value(at: int, row: WorkerOpTimes, theme: Theme) -> PlotlyAnnotation:
    text = formatting.ratio(_ratio(row, row.median_s))
    beside: PlotlyAnnotation = {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 10, "y": at}
    return text_at(beside, text, theme.ink, 12)


def _row(row: WorkerOpTimes) -> list[Cell]:
    peers = row.peers_s or (None, None, None)
    own = [formatting.seconds(row.median_s), formatting.seconds(row.p95_s)]
    theirs = [formatting.measured(value_s, formatting.seconds) for value_s in peers]
    return [formatting.optype_label(row.optype), row.num_ops, *own, *theirs]


def _sentence(times: Sequence[WorkerOpTimes], rows: Sequence[WorkerOpTimes], name: str) -> str:
    if not times:
        return f"{name} has no operations in this window."
    if not rows:
        return f"{name} has no peers to be held against."
    worst = max(rows, key=lambda row: row.total_s * (1 - 1 / max(_ratio(row, row.median_s), 1)))
    ratio = formatting.ratio(_ratio(worst, worst.median_s))
    own, peers = formatting.seconds(worst.median_s), formatting.seconds(_peers_median_s(worst))
    return (
        f"{name}: the median of {formatting.optype_label(worst.optype).lower()} is {own}, "
        f"{ratio} of its peers' {peers}."
    )
