"""Where the loss is: each operation type's share of it."""

from collections.abc import Mapping

from app.charts import words
from app.charts.bars import Bar, bar_layout, bar_trace
from app.charts.figure import Figure, meta
from app.charts.theme import Theme

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


def optypes(optype_slowdown: Mapping[str, float | None], *, theme: Theme) -> Figure:
    """Bars of the loss by operation type, the largest on top."""
    shares = loss_shares(optype_slowdown)
    order = sorted(shares, key=lambda name: -(shares[name] or 0.0))
    bars = [Bar(friendly(name), shares[name], _colour(name, theme)) for name in order]
    drawn = _without_crumbs(bars, theme)
    return Figure(
        data=[bar_trace(drawn, theme)],
        layout=bar_layout(drawn, theme, row_px=30, full_share=0.5),
        meta=meta(
            _sentence(bars),
            ["operation type", "slowdown if only this type kept its times", "share of the loss"],
            [
                [bar.label, _slowdown(optype_slowdown[name]), _share(bar)]
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
