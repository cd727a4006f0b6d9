"""A worker's operations, type by type, against the distribution of its peers' ones."""

from collections.abc import Sequence
from typing import Any

from app import words
from app.charts.figure import Cell, Figure, axis, label_width_px, layout, meta, numbers, title
from app.charts.optypes import friendly
from app.charts.theme import Theme
from app.engine.worker_ops import OpsOfType

_MAX_ROWS = 14
_ROW_PX = 26
# The axis always reaches as far, and never further: what is beyond stands at its end.
_LEAST, _MOST = 1.6, 4.0
_VALUE_PX = 64
_MAX_NAME_CHARS = 32


def worker_ops(found: Sequence[OpsOfType], name: str, *, theme: Theme) -> Figure:
    """Own median and 95th percentile over the middle half of the peers, all by their median."""
    rows = [each for each in found if _peers_median_s(each) > 0][:_MAX_ROWS]
    low, high = _range(rows)
    labels = [f"{_name(each)}  " for each in rows]
    return Figure(
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
                ticksuffix=words.TIMES,
                title=title("times the peers' median", theme),
            ),
            yaxis=axis(
                theme,
                range=[max(len(rows), 1) - 0.5, -0.5],
                tickvals=list(range(len(rows))),
                ticktext=labels,
            ),
            shapes=[_line(theme)],
            annotations=[_value(row, each, theme) for row, each in enumerate(rows)],
        ),
        meta=meta(
            _sentence(found, rows, name),
            ["operation", "number", "own median", "own 95 %", "peers 25 %", "50 %", "75 %"],
            [_row(each) for each in found],
        ),
    )


def _peers_median_s(each: OpsOfType) -> float:
    return each.peers_s[1] if each.peers_s else 0.0


def _name(each: OpsOfType) -> str:
    return words.markup(friendly(each.optype), most_chars=_MAX_NAME_CHARS)


def _ratio(each: OpsOfType, value_s: float) -> float:
    return value_s / _peers_median_s(each)


def _range(rows: Sequence[OpsOfType]) -> tuple[float, float]:
    ratios = [_ratio(each, value) for each in rows for value in (each.median_s, each.p95_s)]
    quartiles = [_ratio(each, value) for each in rows for value in each.peers_s or ()]
    low = min([0.8, *ratios, *quartiles])
    return max(0.0, low - 0.05), min(_MOST, max([_LEAST, *(1.06 * each for each in ratios)]))


def _peers(rows: Sequence[OpsOfType], low: float, high: float, theme: Theme) -> dict[str, Any]:
    quartiles = [tuple(_ratio(each, value) for value in each.peers_s or ()) for each in rows]
    told = [
        f"{_name(each)}, the middle half of the peers<br>"
        f"<b>{words.seconds(each.peers_s[0])} to {words.seconds(each.peers_s[2])}</b>"
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
        "customdata": told,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _points(
    rows: Sequence[OpsOfType], name: str, ratios: Sequence[float], high: float, theme: Theme
) -> dict[str, Any]:
    is_median = name == "own median"
    values = [each.median_s if is_median else each.p95_s for each in rows]
    told = [
        f"{_name(each)}, {name}<br><b>{words.seconds(value_s)}</b>, "
        f"{words.ratio(ratio)} of the peers' median"
        for each, value_s, ratio in zip(rows, values, ratios, strict=True)
    ]
    ring = {"symbol": "circle-open", "size": 9, "color": theme.rec, "line": {"width": 1.5}}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": numbers([min(ratio, high) for ratio in ratios]),
        "y": list(range(len(rows))),
        "marker": {"symbol": "circle", "size": 9, "color": theme.rec} if is_median else ring,
        "cliponaxis": False,
        "customdata": told,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _line(theme: Theme) -> dict[str, Any]:
    line = {"color": theme.ok, "width": 2}
    return {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _value(row: int, each: OpsOfType, theme: Theme) -> dict[str, Any]:
    return {
        "xref": "paper",
        "x": 1,
        "xanchor": "left",
        "xshift": 10,
        "y": row,
        "text": words.ratio(_ratio(each, each.median_s)),
        "showarrow": False,
        "font": {"size": 12, "color": theme.ink},
    }


def _row(each: OpsOfType) -> list[Cell]:
    peers = each.peers_s or (None, None, None)
    own = [words.seconds(each.median_s), words.seconds(each.p95_s)]
    theirs = [words.NOT_MEASURED if value is None else words.seconds(value) for value in peers]
    return [friendly(each.optype), each.num_ops, *own, *theirs]


def _sentence(found: Sequence[OpsOfType], rows: Sequence[OpsOfType], name: str) -> str:
    if not found:
        return f"{name} has no operations in this window."
    if not rows:
        return f"{name} has no peers to be held against."
    worst = max(rows, key=lambda each: each.total_s * (1 - 1 / max(_ratio(each, each.median_s), 1)))
    times = words.ratio(_ratio(worst, worst.median_s))
    own, peers = words.seconds(worst.median_s), words.seconds(_peers_median_s(worst))
    return (
        f"{name}: the median of {friendly(worst.optype).lower()} is {own}, "
        f"{times} of its peers' {peers}."
    )
