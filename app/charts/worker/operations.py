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
    title,
)
from app.charts.base.plotly import (
    PlotlyAnnotation,
    PlotlyLine,
    PlotlyMarker,
    PlotlyShape,
    PlotlyTrace,
)
from app.charts.base.theme import Theme
from app.engine.questions.worker_operations import WorkerOpTimes

_MAX_ROWS = 14
_ROW_PX = 26
# The axis always reaches as far, and never further: what is beyond stands at its end.
_MIN_RANGE, _MAX_RANGE = 1.6, 4.0
_VALUE_PX = 64
_MAX_NAME_CHARS = 32


def worker_operations(found: Sequence[WorkerOpTimes], name: str, *, theme: Theme) -> PlotlyFigure:
    """Own median and 95th percentile over the middle half of the peers, all by their median."""
    rows = [each for each in found if _peers_median_s(each) > 0][:_MAX_ROWS]
    low, high = _range(rows)
    labels = [f"{_name(each)}  " for each in rows]
    return PlotlyFigure(
        data=[
            _peers(rows, low, high, theme),
            _points(rows, "own 95th percentile", [_ratio(e, e.p95_s) for e in rows], high, theme),
            _points(rows, "own median", [_ratio(e, e.median_s) for e in rows], high, theme),
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
            yaxis=axis(
                theme,
                range=[max(len(rows), 1) - 0.5, -0.5],
                tickvals=list(range(len(rows))),
                ticktext=labels,
            ),
            shapes=[_median_line(theme)],
            annotations=[_value(row, each, theme) for row, each in enumerate(rows)],
        ),
        meta=meta(
            _sentence(found, rows, name),
            ["operation", "number", "own median", "own 95 %", "peers 25 %", "50 %", "75 %"],
            [_row(each) for each in found],
        ),
    )


def _peers_median_s(each: WorkerOpTimes) -> float:
    return each.peers_s[1] if each.peers_s else 0.0


def _name(each: WorkerOpTimes) -> str:
    return formatting.chart_label(formatting.optype_label(each.optype), max_chars=_MAX_NAME_CHARS)


def _ratio(each: WorkerOpTimes, value_s: float) -> float:
    return value_s / _peers_median_s(each)


def _range(rows: Sequence[WorkerOpTimes]) -> tuple[float, float]:
    ratios = [_ratio(each, value) for each in rows for value in (each.median_s, each.p95_s)]
    quartiles = [_ratio(each, value) for each in rows for value in each.peers_s or ()]
    low = min([0.8, *ratios, *quartiles])
    return max(0.0, low - 0.05), min(
        _MAX_RANGE, max([_MIN_RANGE, *(1.06 * each for each in ratios)])
    )


def _peers(rows: Sequence[WorkerOpTimes], low: float, high: float, theme: Theme) -> PlotlyTrace:
    quartiles = [tuple(_ratio(each, value) for value in each.peers_s or ()) for each in rows]
    hover_texts = [
        f"{_name(each)}, the middle half of the peers<br>"
        f"<b>{formatting.seconds(each.peers_s[0])} to {formatting.seconds(each.peers_s[2])}</b>"
        for each in rows
        if each.peers_s
    ]
    held = [(max(low, first), min(high, last)) for first, _, last in quartiles]
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
    rows: Sequence[WorkerOpTimes], name: str, ratios: Sequence[float], high: float, theme: Theme
) -> PlotlyTrace:
    is_median = name == "own median"
    values = [each.median_s if is_median else each.p95_s for each in rows]
    hover_texts = [
        f"{_name(each)}, {name}<br><b>{formatting.seconds(value_s)}</b>, "
        f"{formatting.ratio(ratio)} of the peers' median"
        for each, value_s, ratio in zip(rows, values, ratios, strict=True)
    ]
    marker: PlotlyMarker = (
        {"symbol": "circle", "size": 9, "color": theme.rec}
        if is_median
        else {"symbol": "circle-open", "size": 9, "color": theme.rec, "line": {"width": 1.5}}
    )
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


def _median_line(theme: Theme) -> PlotlyShape:
    line: PlotlyLine = {"color": theme.ok, "width": 2}
    return {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _value(row: int, each: WorkerOpTimes, theme: Theme) -> PlotlyAnnotation:
    return {
        "xref": "paper",
        "x": 1,
        "xanchor": "left",
        "xshift": 10,
        "y": row,
        "text": formatting.ratio(_ratio(each, each.median_s)),
        "showarrow": False,
        "font": {"size": 12, "color": theme.ink},
    }


def _row(each: WorkerOpTimes) -> list[Cell]:
    peers = each.peers_s or (None, None, None)
    own = [formatting.seconds(each.median_s), formatting.seconds(each.p95_s)]
    theirs = [
        formatting.NOT_MEASURED if value is None else formatting.seconds(value) for value in peers
    ]
    return [formatting.optype_label(each.optype), each.num_ops, *own, *theirs]


def _sentence(found: Sequence[WorkerOpTimes], rows: Sequence[WorkerOpTimes], name: str) -> str:
    if not found:
        return f"{name} has no operations in this window."
    if not rows:
        return f"{name} has no peers to be held against."
    worst = max(rows, key=lambda each: each.total_s * (1 - 1 / max(_ratio(each, each.median_s), 1)))
    times = formatting.ratio(_ratio(worst, worst.median_s))
    own, peers = formatting.seconds(worst.median_s), formatting.seconds(_peers_median_s(worst))
    return (
        f"{name}: the median of {formatting.optype_label(worst.optype).lower()} is {own}, "
        f"{times} of its peers' {peers}."
    )
