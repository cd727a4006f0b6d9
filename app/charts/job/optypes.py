"""Where the loss is: each operation type's share of it, as bars.

Under the bar of a type of communication, a line says how long it waits; hovering also says how
long it moves data.
"""

from collections.abc import Mapping, Sequence

from app import formatting
from app.charts.base.figure import Bar, Cell, PlotlyFigure, bar_layout, bar_trace, meta
from app.charts.base.plotly import PlotlyAnnotation, PlotlyTrace
from app.charts.base.theme import Theme
from app.result.figures import loss_shares
from app.result.window_result import OptypeTime

# A row's upper part has the share of the loss, its lower part the text.
_BAR_OFFSET, _BAR_WIDTH = -0.16, 0.42
_TEXT_OFFSET = 0.24


# Mean seconds a step and worker in one type of communication: moving data, and waiting.
Communication = tuple[float, float]


def raised_bars(trace: PlotlyTrace, talk: Sequence[Communication | None]) -> PlotlyTrace:
    """The bars of the loss, a little higher in their rows where there is text under them."""
    if not any(talk):
        return trace
    y = [row + _BAR_OFFSET if times_s else row for row, times_s in enumerate(talk)]
    return trace | {"y": y, "width": _BAR_WIDTH}


def communication_labels(
    talk: Sequence[Communication | None], theme: Theme
) -> list[PlotlyAnnotation]:
    """Waiting in words under each bar, and moving data too in its hover text."""
    return [
        {
            "x": 0,
            "xanchor": "left",
            "xshift": 2,
            "y": row + _TEXT_OFFSET,
            "text": f"waits {formatting.short_seconds(times_s[1])} a step",
            "hovertext": "a step and worker: "
            f"{formatting.short_seconds(times_s[0])} moving data, "
            f"{formatting.short_seconds(times_s[1])} waiting",
            "showarrow": False,
            "font": {"size": 11, "color": theme.ink2},
        }
        for row, times_s in enumerate(talk)
        if times_s is not None
    ]


Times = Mapping[str, OptypeTime]

# Types below this share stay in a fixed order, so that they do not jump while a job is live. It
# is written as 1 %: a row that says so would be odd under one that says less.
_MIN_RANKED_SHARE = 0.0095

# Types below this share are drawn as one, but the largest few always have their own bar.
_MIN_DRAWN_SHARE = 0.005
_MIN_BARS = 4


def optypes(
    optype_slowdown: Mapping[str, float | None],
    *,
    theme: Theme,
    times: Times | None = None,
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
    drawn = _small_bars_as_one(bars, theme)
    shown = [(times or {}).get(name) for name in order[: len(drawn)]]
    if len(drawn) < len(bars):
        shown[-1] = None  # several types together
    talk = [_communication(times_s) for times_s in shown]
    row_px = 40 if any(talk) else 30
    frame = bar_layout(drawn, theme, row_px=row_px, full_share=0.5)
    frame["annotations"] = communication_labels(talk, theme)
    return PlotlyFigure(
        data=[raised_bars(bar_trace(drawn, theme), talk)],
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


def _small_bars_as_one(bars: list[Bar], theme: Theme) -> list[Bar]:
    """The bars with all small ones after the largest few as one; the table keeps them apart."""
    kept = [
        bar for at, bar in enumerate(bars) if at < _MIN_BARS or (bar.share or 0) >= _MIN_DRAWN_SHARE
    ]
    rest = bars[len(kept) :]
    if len(rest) < 2:
        return bars
    share = sum(bar.share or 0.0 for bar in rest)
    return [*kept, Bar(f"{len(rest)} other types", share, theme.line2)]


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
