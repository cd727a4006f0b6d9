"""What each operation type makes a step longer by, on both sides."""

from app import words
from app.charts.compare_bars import MAX_ROWS, Pair, paired_bars
from app.charts.compare_side import Side
from app.charts.figure import Figure
from app.charts.optypes import friendly
from app.charts.theme import Theme

# Types that matter on neither side are left to the table, but the first few always have a row.
_CRUMB = 0.001
_MIN_ROWS = 4


def compare_optypes(a: Side, b: Side, *, theme: Theme) -> Figure:
    """Pairs of S_t - 1, the largest on either side first."""
    of_a, of_b = (side.result["optype_slowdown"] for side in (a, b))
    names = dict.fromkeys([*of_b, *of_a])
    pairs = [Pair(friendly(name), over(of_a.get(name)), over(of_b.get(name))) for name in names]
    pairs.sort(key=lambda pair: -pair.size)
    drawn = [p for at, p in enumerate(pairs[:MAX_ROWS]) if at < _MIN_ROWS or p.size >= _CRUMB]
    figure = paired_bars(drawn, _sentence(pairs), "operation type", theme=theme)
    figure["meta"]["table"] = paired_bars(pairs, "", "operation type", theme=theme)["meta"]["table"]
    return figure


def over(slowdown: float | None) -> float | None:
    """By how much a slowdown makes a step longer, as a share of the ideal one."""
    return None if slowdown is None else slowdown - 1


def _sentence(pairs: list[Pair]) -> str:
    most = max(pairs, key=lambda pair: pair.change, default=None)
    if most is None or most.a is None or most.b is None:
        return "The two sides have no operation type in common."
    return (
        f"{most.label} differs most: alone it makes a step {words.percent(most.b)} longer than "
        f"ideal on B, {words.percent(most.a)} on A."
    )
