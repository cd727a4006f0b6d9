"""Names beside the marks of a distribution, each where neither the line nor another name is."""

from dataclasses import dataclass
from typing import Self

from app import words
from app.charts.fleet_jobs import JobLoss

LABEL_CHARS = 18
SHORT_CHARS = 10  # on a phone

# How large a letter is on the smallest chart that has the long names, and on a phone's.
_CHAR_PX = 6.2
_PLOT_PX, _PHONE_PLOT_PX = 400, 240
_MARK_SHARE = 0.03
_HIGH = 12.0  # of a hundred


@dataclass(frozen=True, slots=True)
class Label:
    """A job's name at a mark (per cent both ways), with the room that both of them take.

    Under the mark and to its right, or over it and to its left, there is never any of a line that
    rises; `place` says which, as Plotly does.
    """

    job: JobLoss
    x: float
    y: float
    place: str
    from_x: float
    to_x: float
    from_y: float
    to_y: float

    @classmethod
    def beside(cls, job: JobLoss, x: float, y: float, end: float) -> list[Self]:
        """The places that a job's name has room at, of an axis up to `end`."""
        mark = _MARK_SHARE * end / 2
        width = _width(job.name) * end
        under, over = (y - _HIGH, y + _HIGH / 4), (y - _HIGH / 4, y + _HIGH)
        right = cls(job, x, y, "bottom right", x - mark, x + mark + width, *under)
        left = cls(job, x, y, "top left", x - mark - width, x + mark, *over)
        has_right, has_left = right.to_x <= end and right.from_y >= 0, left.from_x >= 0
        return [right] * has_right + [left] * has_left

    def touches(self, other: "Label") -> bool:
        """Whether the two would be drawn over each other."""
        is_beside = self.to_x < other.from_x or other.to_x < self.from_x
        return not is_beside and self.from_y < other.to_y and other.from_y < self.to_y

    def crosses(self, x: float, y: float) -> bool:
        """Whether one of two lines from here to the axes would go through it."""
        is_through = self.from_x < x < self.to_x and self.from_y < y
        return is_through or (self.from_y < y < self.to_y and self.from_x < x)


def shortened(name: str, most_chars: int) -> str:
    """A job's name as markup: its beginning, which is what a list has it under."""
    short = name if len(name) <= most_chars else f"{name[: most_chars - 1]}\u2026"
    return words.markup(short, most_chars)


def _width(name: str) -> float:
    """The largest share of the axis that it takes."""
    long, short = min(len(name), LABEL_CHARS), min(len(name), SHORT_CHARS)
    return _CHAR_PX * max(long / _PLOT_PX, short / _PHONE_PLOT_PX)
