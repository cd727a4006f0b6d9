"""Two bars a row, A and B: how much each operation type or stage lengthens a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from app import formatting
from app.charts.base.bars import bars_of, rows_layout
from app.charts.base.figure import Cell, PlotlyFigure, meta
from app.charts.base.plotly import PlotlyLayout, PlotlyTrace
from app.charts.base.theme import Theme
from app.charts.compare.summary import Side

_ROW_PX = 40
# More rows than these are a list, not a picture: the table has them all.
MAX_ROWS = 12
# An axis never spans less, so that small losses look small.
_MIN_RANGE = 0.1
_MIN_DRAWN_BELOW_ZERO = 0.005
_NOT_MEASURED = (formatting.NOT_MEASURED, formatting.NOT_MEASURED)


@dataclass(frozen=True, slots=True)
class BarPair:
    """A row: how much longer a step takes with only this as recorded, on A and B; None: not there.

    `absent` is what is said of A and of B where that is so.
    """

    label: str
    values: tuple[float | None, float | None]
    absent: tuple[str, str] = _NOT_MEASURED

    @property
    def size(self) -> float:
        """The larger of the two."""
        return max(value or 0.0 for value in self.values)

    @property
    def change(self) -> float:
        """Absolute difference."""
        a, b = (value or 0.0 for value in self.values)
        return abs(b - a)

    @property
    def texts(self) -> list[str]:
        """The values in words."""
        return [
            absent if value is None else formatting.percent(value)
            for value, absent in zip(self.values, self.absent, strict=True)
        ]


def paired_bars(
    drawn: Sequence[BarPair],
    pairs: Sequence[BarPair],
    sentence: str,
    column: str,
    *,
    theme: Theme,
    note: str = "",
) -> PlotlyFigure:
    """A figure of some pairs from the top down, A's bar hollow and above B's; a table of all."""
    rows: list[list[Cell]] = [[pair.label, *pair.texts] for pair in pairs]
    return PlotlyFigure(
        data=[_bars(drawn, "A", theme), _bars(drawn, "B", theme)],
        layout=_layout(drawn, theme),
        meta=meta(sentence, [column, "A", "B"], rows, note=note),
    )


def _bars(pairs: Sequence[BarPair], side: str, theme: Theme) -> PlotlyTrace:
    at, is_a = "AB".index(side), side == "A"
    trace = bars_of(
        [pair.label for pair in pairs],
        [_bar_length(pair.values[at]) for pair in pairs],
        theme,
        name=side,
        y=[row + (-0.18 if is_a else 0.18) for row in range(len(pairs))],
        width=0.26,
        marker={"color": theme.lost, "line": {"width": 0}},
        text=[pair.texts[at] for pair in pairs],
        hovertemplate=f"%{{customdata}}, {side}<br><b>%{{text}}</b> longer<extra></extra>",
    )
    if is_a:
        trace["marker"] = {"color": theme.surface, "line": {"width": 1.5, "color": theme.ink3}}
        trace["textfont"] = {"size": 12, "color": theme.ink2}
    return trace


def _layout(pairs: Sequence[BarPair], theme: Theme) -> PlotlyLayout:
    lengths = [_bar_length(value) for pair in pairs for value in pair.values]
    frame = rows_layout(
        [pair.label for pair in pairs],
        (min([0.0, *lengths]), max([_MIN_RANGE, *lengths])),
        theme,
        height_px=_ROW_PX * max(1, len(pairs)) + 20,
    )
    frame["barmode"] = "overlay"
    return frame


def _bar_length(value: float | None) -> float:
    """Length of a bar: next to nothing below 0 is not worth the room that its value would take."""
    return 0.0 if value is None or -_MIN_DRAWN_BELOW_ZERO < value < 0 else value


# Types that matter on neither side are left to the table, but the first few always have a row.
_MIN_DRAWN_SIZE = 0.001
_MIN_ROWS = 4


def compare_optypes(a: Side, b: Side, *, theme: Theme) -> PlotlyFigure:
    """Pairs of S_t - 1, the largest on either side first."""
    ratios_a, ratios_b = (side.result.optype_slowdown for side in (a, b))
    pairs = []
    for name in dict.fromkeys([*ratios_b, *ratios_a]):
        values = (excess(ratios_a.get(name)), excess(ratios_b.get(name)))
        pairs.append(BarPair(formatting.optype_label(name), values))
    pairs.sort(key=lambda pair: -pair.size)
    drawn = [
        p for at, p in enumerate(pairs[:MAX_ROWS]) if at < _MIN_ROWS or p.size >= _MIN_DRAWN_SIZE
    ]
    return paired_bars(drawn, pairs, _optype_sentence(pairs), "operation type", theme=theme)


def excess(slowdown: float | None) -> float | None:
    """Slowdown less 1: how much longer a step is, as a share of the ideal one."""
    return None if slowdown is None else slowdown - 1


def _optype_sentence(pairs: list[BarPair]) -> str:
    most = max(pairs, key=lambda pair: pair.change, default=None)
    if most is None or None in most.values:
        return "The two sides have no operation type in common."
    longer_a, longer_b = most.texts
    return (
        f"{most.label} differs most: alone it makes a step {longer_b} longer than ideal on B, "
        f"{longer_a} on A."
    )


def compare_stages(a: Side, b: Side, *, theme: Theme) -> PlotlyFigure:
    """Pairs of a stage's slowdown less 1; of many stages those that differ most.

    "No stage N" stands where a job has fewer stages, not "not measured".
    """
    excess_a, excess_b = ([excess(s) for s in side.result.stage_slowdown or ()] for side in (a, b))
    pairs = []
    for stage, values in enumerate(zip_longest(excess_a, excess_b)):
        absent_a, absent_b = (
            f"no stage {stage}" if 0 < len(known) <= stage else formatting.NOT_MEASURED
            for known in (excess_a, excess_b)
        )
        pairs.append(BarPair(f"stage {stage}", values, (absent_a, absent_b)))
    most = sorted(range(len(pairs)), key=lambda at: -pairs[at].change)[:MAX_ROWS]
    drawn = [pairs[at] for at in sorted(most)]
    some = f"{MAX_ROWS} of {len(pairs)} stages: those that differ most."
    note = some if len(pairs) > MAX_ROWS else ""
    return paired_bars(drawn, pairs, _stage_sentence(pairs), "stage", theme=theme, note=note)


def _stage_sentence(pairs: list[BarPair]) -> str:
    if not pairs:
        return "No stage was measured."
    most = max(pairs, key=lambda pair: pair.change)
    longer_a, longer_b = (
        text if value is None else f"{text} longer"
        for text, value in zip(most.texts, most.values, strict=True)
    )
    label = most.label.capitalize()
    return f"{label} differs most; alone it makes a step {longer_b} on B, {longer_a} on A."
