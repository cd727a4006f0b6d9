"""Two bars a row, A and B: how much each operation type or stage lengthens a step."""

from collections.abc import Sequence
from dataclasses import dataclass

from app import formatting
from app.charts.base.figure import Cell, PlotlyFigure, meta, rows_layout
from app.charts.base.plotly import PlotlyLayout, PlotlyMarker, PlotlyTrace
from app.charts.base.theme import Theme
from app.charts.compare.summary import Side

_ROW_PX = 40
# More rows than these are a list, not a picture: the table has them all.
MAX_ROWS = 12
# An axis never spans less, so that small losses look small.
_MIN_RANGE = 0.1
_MIN_DRAWN_BELOW_ZERO = 0.005


@dataclass(frozen=True, slots=True)
class BarPair:
    """A row: how much longer a step takes with only this kept as recorded; None: not there.

    `absent` is what is said of A and of B where that is so.
    """

    label: str
    a: float | None
    b: float | None
    absent: tuple[str, str] = (formatting.NOT_MEASURED, formatting.NOT_MEASURED)

    @property
    def size(self) -> float:
        """The larger of the two."""
        return max(self.a or 0.0, self.b or 0.0)

    @property
    def change(self) -> float:
        """Absolute difference."""
        return abs((self.b or 0.0) - (self.a or 0.0))


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
    return PlotlyFigure(
        data=[_bars(drawn, "A", theme), _bars(drawn, "B", theme)],
        layout=_layout(drawn, theme),
        meta=meta(sentence, [column, "A", "B"], [_table_row(pair) for pair in pairs], note=note),
    )


def _bars(pairs: Sequence[BarPair], side: str, theme: Theme) -> PlotlyTrace:
    values = [pair.a if side == "A" else pair.b for pair in pairs]
    look: PlotlyMarker = (
        {"color": theme.surface, "line": {"width": 1.5, "color": theme.ink3}}
        if side == "A"
        else {"color": theme.lost, "line": {"width": 0}}
    )
    return {
        "type": "bar",
        "orientation": "h",
        "name": side,
        "x": [_bar_length(value) for value in values],
        "y": [at + (-0.18 if side == "A" else 0.18) for at in range(len(pairs))],
        "width": 0.26,
        "marker": look,
        "text": [
            pair.absent["AB".index(side)] if value is None else formatting.percent(value)
            for pair, value in zip(pairs, values, strict=True)
        ],
        "customdata": [pair.label for pair in pairs],
        "textposition": "outside",
        "textfont": {"size": 12, "color": theme.ink2 if side == "A" else theme.ink},
        "cliponaxis": False,
        "constraintext": "none",
        "hovertemplate": f"%{{customdata}}, {side}<br><b>%{{text}}</b> longer<extra></extra>",
    }


def _layout(pairs: Sequence[BarPair], theme: Theme) -> PlotlyLayout:
    values = [_bar_length(value) for pair in pairs for value in (pair.a, pair.b)]
    frame = rows_layout(
        [pair.label for pair in pairs],
        (min([0.0, *values]), max([_MIN_RANGE, *values])),
        theme,
        height_px=_ROW_PX * max(1, len(pairs)) + 20,
    )
    frame["barmode"] = "overlay"
    return frame


def _bar_length(value: float | None) -> float:
    """Length of a bar: next to nothing below 0 is not worth the room that its value would take."""
    return 0.0 if value is None or -_MIN_DRAWN_BELOW_ZERO < value < 0 else value


def _table_row(pair: BarPair) -> list[Cell]:
    return [
        pair.label,
        *(
            absent if value is None else formatting.percent(value)
            for value, absent in zip((pair.a, pair.b), pair.absent, strict=True)
        ),
    ]


# Types that matter on neither side are left to the table, but the first few always have a row.
_MIN_DRAWN_SIZE = 0.001
_MIN_ROWS = 4


def compare_optypes(a: Side, b: Side, *, theme: Theme) -> PlotlyFigure:
    """Pairs of S_t - 1, the largest on either side first."""
    of_a, of_b = (side.result.optype_slowdown for side in (a, b))
    names = dict.fromkeys([*of_b, *of_a])
    pairs = [
        BarPair(formatting.optype_label(name), excess(of_a.get(name)), excess(of_b.get(name)))
        for name in names
    ]
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
    if most is None or most.a is None or most.b is None:
        return "The two sides have no operation type in common."
    return (
        f"{most.label} differs most: alone it makes a step {formatting.percent(most.b)} longer "
        f"than ideal on B, {formatting.percent(most.a)} on A."
    )


def compare_stages(a: Side, b: Side, *, theme: Theme) -> PlotlyFigure:
    """Pairs of a stage's slowdown less 1; of many stages those that differ most."""
    of_a, of_b = ([excess(s) for s in side.result.stage_slowdown or ()] for side in (a, b))
    num_stages = max(len(of_a), len(of_b))
    pairs = [_stage_pair(at, of_a, of_b) for at in range(num_stages)]
    most = sorted(range(num_stages), key=lambda at: -pairs[at].change)[:MAX_ROWS]
    drawn = [pairs[at] for at in sorted(most)]
    some = f"{MAX_ROWS} of {num_stages} stages: those that differ most."
    note = some if num_stages > MAX_ROWS else ""
    return paired_bars(drawn, pairs, _stage_sentence(pairs), "stage", theme=theme, note=note)


def _stage_pair(stage: int, of_a: list[float | None], of_b: list[float | None]) -> BarPair:
    """One stage of both jobs; "no stage N" where a job has fewer stages, not "not measured"."""
    of_a_said, of_b_said = (
        f"no stage {stage}" if values and stage >= len(values) else formatting.NOT_MEASURED
        for values in (of_a, of_b)
    )
    return BarPair(
        f"stage {stage}", _excess_at(of_a, stage), _excess_at(of_b, stage), (of_a_said, of_b_said)
    )


def _excess_at(values: list[float | None], at: int) -> float | None:
    return values[at] if at < len(values) else None


def _stage_sentence(pairs: list[BarPair]) -> str:
    if not pairs:
        return "No stage was measured."
    most = max(pairs, key=lambda pair: pair.change)
    text = [
        f"{absent if value is None else formatting.percent(value) + ' longer'} on {letter}"
        for letter, value, absent in zip("BA", (most.b, most.a), most.absent[::-1], strict=True)
    ]
    return f"{most.label.capitalize()} differs most; alone it makes a step {', '.join(text)}."
