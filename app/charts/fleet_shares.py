"""What the fleet's loss is made of: by cause, and by operation type."""

from collections.abc import Mapping, Sequence

from app import words
from app.charts.bars import Bar, bar_layout, bar_trace
from app.charts.figure import Figure, meta
from app.charts.fleet_words import cause, hours
from app.charts.optypes import friendly
from app.charts.theme import Theme

NOT_EXPLAINED = "not-explained"
_HEIGHT_PX = 236
_MOST_BARS = 7
_FULL_SHARE = 0.4
_LABEL_CHARS = 26

_OVERLAP = "Causes overlap, so shares need not add up to 100 %."


def fleet_causes(lost_hours: Mapping[str, float], total_hours: float, *, theme: Theme) -> Figure:
    """Bars of the GPU-hours lost by cause, the largest on top and what is not explained last.

    `lost_hours` is by cause, `total_hours` all that was lost; it is above zero.
    """
    found = _largest_first({k: lost for k, lost in lost_hours.items() if k != NOT_EXPLAINED})
    unexplained = lost_hours.get(NOT_EXPLAINED, 0.0)
    bars = [Bar(_named(name), lost / total_hours, theme.lost) for name, lost in found.items()]
    drawn = _fitting(bars, _MOST_BARS - 1 if unexplained else _MOST_BARS, "causes", theme)
    if unexplained:
        drawn.append(Bar(_named(NOT_EXPLAINED), unexplained / total_hours, theme.line2))
    text = "No cause was found for what was lost."
    if bars:
        text = f"{_leads(bars[0], 'costs', total_hours)} {_OVERLAP}"
    rows = found | ({NOT_EXPLAINED: unexplained} if unexplained else {})
    table = [(_named(name), lost) for name, lost in rows.items()]
    return _figure(drawn, text, "cause", table, total_hours, theme)


def fleet_optypes(lost_hours: Mapping[str, float], *, theme: Theme) -> Figure:
    """Bars of the GPU-hours lost by operation type, the largest on top; some are above zero."""
    total = sum(lost_hours.values())
    table = [(friendly(name), lost) for name, lost in _largest_first(lost_hours).items()]
    bars = [Bar(words.markup(name, _LABEL_CHARS), lost / total, theme.lost) for name, lost in table]
    drawn = _fitting(bars, _MOST_BARS, "types", theme)
    text = _leads(bars[0], "carries", total)
    return _figure(drawn, text, "operation type", table, total, theme)


def _fitting(bars: list[Bar], most: int, what: str, theme: Theme) -> list[Bar]:
    """So many bars, the smallest as one."""
    if len(bars) <= most:
        return list(bars)
    rest = bars[most - 1 :]
    share = sum(bar.share or 0.0 for bar in rest)
    return [*bars[: most - 1], Bar(f"{len(rest)} other {what}", share, theme.line2)]


def _figure(
    bars: list[Bar],
    text: str,
    what: str,
    table: Sequence[tuple[str, float]],
    total: float,
    theme: Theme,
) -> Figure:
    frame = bar_layout(bars, theme, row_px=1, full_share=_FULL_SHARE)
    # As high with few bars as with many, so that nothing below it moves.
    frame["height"] = _HEIGHT_PX
    frame["yaxis"]["range"] = [_MOST_BARS - 0.5, -0.5]
    rows = [[name, hours(lost), words.percent(lost / total)] for name, lost in table]
    return Figure(
        data=[bar_trace(bars, theme)],
        layout=frame,
        meta=meta(text, [what, "GPU-hours lost", "share of the loss"], [[*row] for row in rows]),
    )


def _leads(bar: Bar, does: str, total: float) -> str:
    lost = f"{words.percent(bar.share or 0.0)} of the {hours(total)} GPU-hours that were lost"
    return f"{bar.label} {does} most: {lost}."


def _largest_first(lost: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(lost.items(), key=lambda pair: (-pair[1], pair[0])))


def _named(name: str) -> str:
    said = cause(name)
    return said[0].upper() + said[1:]
