"""Where the loss is: each operation type's share of it, as bars.

Under the bar of a type of communication, a line says how long it waits; hovering also says how
long it moves data.
"""

from collections.abc import Mapping, Sequence

from app import formatting
from app.charts.base.bars import Bar, bar_layout, bar_trace, small_bars_as_one
from app.charts.base.figure import Cell, PlotlyFigure, meta
from app.charts.base.plotly import PlotlyAnnotation, text_at
from app.charts.base.theme import Theme
from app.result.figures import loss_shares
from app.result.window_result import OptypeTime

# A row's upper part has the share of the loss, its lower part the text.
_BAR_OFFSET, _BAR_WIDTH = -0.16, 0.42
_TEXT_OFFSET = 0.24


# Mean seconds a step and worker in one type of communication: moving data, and waiting.
Communication = tuple[float, float]


def communication_label(row: int, times_s: Communication, theme: Theme) -> PlotlyAnnotation:
    """Waiting in words under the bar of a row, and moving data too in its hover text."""
    moving, waiting = map(formatting.short_seconds, times_s)
    hover = f"a step and worker: {moving} moving data, {waiting} waiting"
    place: PlotlyAnnotation = {"x": 0, "xanchor": "left", "xshift": 2, "y": row + _TEXT_OFFSET}
    return text_at(place | {"hovertext": hover}, f"waits {waiting} a step", theme.ink2)


Times = Mapping[str, OptypeTime]

# Types below this share stay in a fixed order, so that they do not jump while a job is live. It
# is written as 1 %: a row that says so would be odd under one that says less.
_MIN_RANKED_SHARE = 0.0095

# Types below this share are drawn as one, but the largest few always have their own bar.
_MIN_DRAWN_SHARE = 0.005
_MIN_BARS = 4


def optypes(
    optype_slowdown: Mapping[str, float | None], *, theme: Theme, times: Times | None = None
) -> PlotlyFigure:
    """Bars of the loss by operation type, the largest on top.

    `times` has the mean seconds a step and worker of each type; with it a line under the bar of
    each type of communication says how long it waits.
    """
    shares = loss_shares(optype_slowdown)
    order = sorted(shares, key=lambda name: _sort_key(name, shares[name] or 0.0))
    bars = [
        Bar(formatting.optype_label(name), shares[name], _colour(name, theme)) for name in order
    ]
    # The table keeps small ones apart.
    num_kept = sum(
        at < _MIN_BARS or (bar.share or 0) >= _MIN_DRAWN_SHARE for at, bar in enumerate(bars)
    )
    drawn = small_bars_as_one(bars, num_kept, "types", theme)
    talk = [_communication((times or {}).get(name)) for name in order[: len(drawn)]]
    if len(drawn) < len(bars):
        talk[-1] = None  # several types together
    trace = bar_trace(drawn, theme)
    if any(talk):
        # Higher in their rows where there is text under them.
        trace["y"] = [row + _BAR_OFFSET if times_s else row for row, times_s in enumerate(talk)]
        trace["width"] = _BAR_WIDTH
    frame = bar_layout(drawn, theme, row_px=40 if any(talk) else 30, full_share=0.5)
    frame["annotations"] = [
        communication_label(row, times_s, theme) for row, times_s in enumerate(talk) if times_s
    ]
    return PlotlyFigure(
        data=[trace],
        layout=frame,
        meta=meta(
            _sentence(bars),
            [
                "operation type",
                "slowdown if only this type kept its times",
                "share of the loss",
                "a step and worker: moving data or computing",
                "waiting",
            ],
            [
                [
                    bar.label,
                    formatting.measured(optype_slowdown[name], formatting.ratio),
                    formatting.measured(bar.share, formatting.percent),
                    *_time_cells(name, times),
                ]
                for name, bar in zip(order, bars, strict=True)
            ],
        ),
    )


def _sort_key(name: str, share: float) -> tuple[float, int, str]:
    """Where a type stands: by its share, or if that is small by its name."""
    if share >= _MIN_RANKED_SHARE:
        return -share, 0, name
    labels = list(formatting.OPTYPE_LABELS)
    place = labels.index(name) if name in labels else len(labels)
    return float(share < _MIN_DRAWN_SHARE), place, name


def _colour(optype: str, theme: Theme) -> str:
    match optype:
        case "forward-compute":
            return theme.fwd
        case "backward-compute" | "backward-input-compute" | "backward-weight-compute":
            return theme.bwd
        case "optimizer" | "gc":
            return theme.upd
        case _:
            return theme.xfer


def _sentence(bars: list[Bar]) -> str:
    if not bars or not bars[0].share:
        return "No operation type by itself makes the job slower than its ideal."
    return (
        f"{bars[0].label} carries {formatting.percent(bars[0].share)} of the loss. "
        "A share is the type's own slowdown above 1 over the sum of all types' slowdowns above 1."
    )


def _communication(times: OptypeTime | None) -> Communication | None:
    """How long a type of communication moves data and waits; None of all others."""
    if times is None or times.transfer is None or times.wait is None:
        return None
    # A transfer below zero says that clocks disagree, and is next to nothing.
    return max(0.0, times.transfer), times.wait


def _time_cells(name: str, times: Times | None) -> Sequence[Cell]:
    known = (times or {}).get(name)
    if known is None:
        return formatting.NOT_MEASURED, formatting.NOT_MEASURED
    busy_s = known.recorded if known.transfer is None else known.transfer
    wait = None if known.wait is None else formatting.seconds(known.wait)
    return formatting.measured(busy_s, formatting.seconds), wait
