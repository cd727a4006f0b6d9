"""Two bars for each row, one above the other: before and now."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app import words
from app.charts.bars import rows_layout
from app.charts.figure import Cell, Figure, meta
from app.charts.theme import Theme

_ROW_PX = 40
# More rows than these are a list, not a picture: the table has them all.
MAX_ROWS = 12
# An axis never spans less, so that small losses look small.
_LEAST_RANGE = 0.1
_CRUMB = 0.005


@dataclass(frozen=True, slots=True)
class Pair:
    """A row: how much longer a step takes with only this kept as recorded; None: not there.

    `absent` is what is said of A and of B where that is so.
    """

    label: str
    a: float | None
    b: float | None
    absent: tuple[str, str] = (words.NOT_MEASURED, words.NOT_MEASURED)

    @property
    def size(self) -> float:
        """The larger of the two."""
        return max(self.a or 0.0, self.b or 0.0)

    @property
    def change(self) -> float:
        """How much they differ."""
        return abs((self.b or 0.0) - (self.a or 0.0))


def paired_bars(
    pairs: Sequence[Pair], sentence: str, column: str, *, theme: Theme, note: str = ""
) -> Figure:
    """A figure of the pairs from the top down, A's bar hollow and above B's."""
    return Figure(
        data=[_bars(pairs, "A", theme), _bars(pairs, "B", theme)],
        layout=_layout(pairs, theme),
        meta=meta(sentence, [column, "A", "B"], [_row(pair) for pair in pairs], note=note),
    )


def _bars(pairs: Sequence[Pair], side: str, theme: Theme) -> dict[str, Any]:
    values = [pair.a if side == "A" else pair.b for pair in pairs]
    look = (
        {"color": theme.surface, "line": {"width": 1.5, "color": theme.ink3}}
        if side == "A"
        else {"color": theme.lost, "line": {"width": 0}}
    )
    return {
        "type": "bar",
        "orientation": "h",
        "name": side,
        "x": [_drawn(value) for value in values],
        "y": [at + (-0.18 if side == "A" else 0.18) for at in range(len(pairs))],
        "width": 0.26,
        "marker": look,
        "text": [
            pair.absent["AB".index(side)] if value is None else words.percent(value)
            for pair, value in zip(pairs, values, strict=True)
        ],
        "customdata": [pair.label for pair in pairs],
        "textposition": "outside",
        "textfont": {"size": 12, "color": theme.ink2 if side == "A" else theme.ink},
        "cliponaxis": False,
        "constraintext": "none",
        "hovertemplate": f"%{{customdata}}, {side}<br><b>%{{text}}</b> longer<extra></extra>",
    }


def _layout(pairs: Sequence[Pair], theme: Theme) -> dict[str, Any]:
    values = [_drawn(value) for pair in pairs for value in (pair.a, pair.b)]
    return rows_layout(
        [pair.label for pair in pairs],
        (min([0.0, *values]), max([_LEAST_RANGE, *values])),
        theme,
        height_px=_ROW_PX * max(1, len(pairs)) + 20,
        barmode="overlay",
    )


def _drawn(value: float | None) -> float:
    """Length of a bar: next to nothing below 0 is not worth the room that its value would take."""
    return 0.0 if value is None or -_CRUMB < value < 0 else value


def _row(pair: Pair) -> list[Cell]:
    return [
        pair.label,
        *(
            absent if value is None else words.percent(value)
            for value, absent in zip((pair.a, pair.b), pair.absent, strict=True)
        ),
    ]
