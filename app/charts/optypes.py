"""Where the loss is: each operation type's share of it."""

from collections.abc import Mapping, Sequence

from app import words
from app.charts.bars import Bar, bar_layout, bar_trace
from app.charts.figure import Cell, Figure, meta
from app.charts.talk_lines import Talk, placed, talk_lines
from app.charts.theme import Theme

Times = Mapping[str, Mapping[str, float | None]]

# Types below this share stay in a fixed order, so that they do not jump while a job is live. It
# is written as 1 %: a row that says so would be odd under one that says less.
_SMALL = 0.0095

# Types below this share are drawn as one, but the largest few always have their own bar.
_CRUMB = 0.005
_MIN_BARS = 4

_NAMES = {
    "forward-compute": "Forward compute",
    "backward-compute": "Backward compute",
    "optimizer": "Optimizer",
    "gc": "Garbage collection",
    "forward-pp-comm": "Pipeline forward transfer",
    "backward-pp-comm": "Pipeline backward transfer",
    "params-all-gather": "Parameter gather",
    "grads-reduce-scatter": "Gradient reduce",
    "separate-grads-all-reduce": "Separate gradient reduce",
    "layernorm-grads-all-reduce": "Layer-norm gradient reduce",
    "embedding-grads-all-reduce": "Embedding gradient reduce",
    "optimizer-clip-main-grad": "Gradient clipping",
}


def optypes(
    optype_slowdown: Mapping[str, float | None],
    *,
    theme: Theme,
    times: Times | None = None,
) -> Figure:
    """Bars of the loss by operation type, the largest on top.

    `times` has the mean seconds a step and worker of each type, "recorded", "transfer" and
    "wait"; with it a line under the bar of each type of communication says how long it waits.
    """
    shares = loss_shares(optype_slowdown)
    order = sorted(shares, key=lambda name: _place(name, shares[name] or 0.0))
    bars = [Bar(friendly(name), shares[name], _colour(name, theme)) for name in order]
    drawn = _without_crumbs(bars, theme)
    shown = [(times or {}).get(name) for name in order[: len(drawn)]]
    if len(drawn) < len(bars):
        shown[-1] = None  # several types together
    talk = [_talk(each) for each in shown]
    row_px = 40 if any(talk) else 30
    frame = bar_layout(drawn, theme, row_px=row_px, full_share=0.5)
    return Figure(
        data=[placed(bar_trace(drawn, theme), talk)],
        layout={**frame, "annotations": talk_lines(talk, theme)},
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
                [bar.label, _slowdown(optype_slowdown[name]), _share(bar), *_spent(name, times)]
                for name, bar in zip(order, bars, strict=True)
            ],
        ),
    )


def loss_shares(optype_slowdown: Mapping[str, float | None]) -> dict[str, float | None]:
    """Share of each type: (S_t - 1) over the sum of the positive ones; below zero counts as 0."""
    losses = {
        name: None if slowdown is None else max(0.0, slowdown - 1.0)
        for name, slowdown in optype_slowdown.items()
    }
    total = sum(loss or 0.0 for loss in losses.values())
    return {
        name: None if loss is None else loss / total if total > 0 else 0.0
        for name, loss in losses.items()
    }


def friendly(optype: str) -> str:
    """An operation type in words."""
    return _NAMES.get(optype, optype.replace("-", " ").capitalize())


def _place(name: str, share: float) -> tuple[float, int, str]:
    """Where a type stands: by its share, or if that is small by its name."""
    if share >= _SMALL:
        return -share, 0, name
    is_crumb = float(share < _CRUMB)
    return is_crumb, list(_NAMES).index(name) if name in _NAMES else len(_NAMES), name


def _without_crumbs(bars: list[Bar], theme: Theme) -> list[Bar]:
    """The bars with all small ones after the largest few as one; the table keeps them apart."""
    kept = [bar for at, bar in enumerate(bars) if at < _MIN_BARS or (bar.share or 0) >= _CRUMB]
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
        f"{bars[0].label} carries {words.percent(bars[0].share)} of the loss. "
        "A share is the type's own slowdown above 1 over the sum of all types' slowdowns above 1."
    )


def _slowdown(slowdown: float | None) -> str:
    return words.NOT_MEASURED if slowdown is None else words.ratio(slowdown)


def _share(bar: Bar) -> str:
    return words.NOT_MEASURED if bar.share is None else words.percent(bar.share)


def _talk(times: Mapping[str, float | None] | None) -> Talk | None:
    """How long a type of communication moves data and waits; None of all others."""
    if times is None or times["transfer"] is None or times["wait"] is None:
        return None
    # A transfer below zero says that clocks disagree, and is next to nothing.
    return Talk(max(0.0, times["transfer"]), times["wait"])


def _spent(name: str, times: Times | None) -> Sequence[Cell]:
    known = (times or {}).get(name)
    if known is None:
        return words.NOT_MEASURED, words.NOT_MEASURED
    busy = known["recorded"] if known["transfer"] is None else known["transfer"]
    wait = known["wait"]
    return (
        words.NOT_MEASURED if busy is None else words.seconds(busy),
        None if wait is None else words.seconds(wait),
    )
