"""The critical path on a timeline: outlined bars, joined where it goes from one to the next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from app.charts.figure import numbers
from app.charts.lane_places import LanePlaces
from app.charts.theme import Theme
from app.engine.chain import Link
from app.engine.timeline.lanes import activity_of
from app.trace.ops import OpTypes

Point = tuple[float | None, float | None]
_BREAK: Point = (None, None)
_MIN_TRANSFER_PX = 2.0
_MIN_BAR_PX = 4.0


@dataclass(frozen=True, slots=True)
class Box:
    """An outlined stretch of a lane; `half_px` is half its height, `number` counts the links."""

    number: int
    start_s: float
    end_s: float
    y: float
    half_px: float
    is_shown: bool = True

    def outline(self) -> list[Point]:
        """Its four sides."""
        top, bottom = self.y - self.half_px, self.y + self.half_px
        return [
            (self.start_s, top),
            (self.end_s, top),
            (self.end_s, bottom),
            (self.start_s, bottom),
            (self.start_s, top),
            _BREAK,
        ]


def path_line(boxes: Sequence[Box], theme: Theme) -> dict[str, Any]:
    """One line trace with all outlines and what joins them."""
    points: list[Point] = []
    for box in boxes:
        points += box.outline()
    for one, two in pairwise(boxes):
        points += _join(one, two)
    x, y = zip(*points, strict=True) if points else ((), ())
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "critical path",
        "x": numbers(x),
        "y": numbers(y),
        "connectgaps": False,
        "line": {"color": theme.ink, "width": 2, "shape": "linear"},
        "hoverinfo": "skip",
    }


def boxes(
    links: Sequence[Link], dp_rank: int, op_types: OpTypes, places: LanePlaces, px_s: float
) -> list[Box]:
    """The outlines of those links that one dp rank has; slivers of one lane are one outline."""
    found: list[Box] = []
    for box in _each(links, dp_rank, op_types, places, px_s):
        last = found[-1] if found else None
        if last and _is_sliver_beside(last, box, px_s):
            found[-1] = Box(box.number, last.start_s, box.end_s, box.y, box.half_px)
        else:
            found.append(box)
    return found


def _each(
    links: Sequence[Link], dp_rank: int, op_types: OpTypes, places: LanePlaces, px_s: float
) -> Iterator[Box]:
    now_s, number = 0.0, 0
    for link in links:
        start_s = now_s + link.gap_s
        now_s = start_s + link.own_s
        if link.dp_rank != dp_rank:
            number += 1  # what comes after another replica's links is joined to none before
            continue
        spec = op_types.by_code[op_types.codes[link.optype]]
        if activity_of(spec) != "transfer":
            half_px = places.bar_px / 2 + places.clear_px
            yield Box(number, start_s, now_s, places.bar_y(0, link.stage), half_px)
        elif link.own_s >= _MIN_TRANSFER_PX * px_s:
            half_px = places.transfer_px / 2 + places.clear_px - 1
            yield Box(number, start_s, now_s, places.transfer_y(0, link.stage), half_px)


def _is_sliver_beside(one: Box, two: Box, px_s: float) -> bool:
    narrow_s = _MIN_BAR_PX * px_s
    is_beside = one.y == two.y and abs(two.start_s - one.end_s) < px_s
    return is_beside and (two.end_s - two.start_s < narrow_s or one.end_s - one.start_s < narrow_s)


def _join(one: Box, two: Box) -> list[Point]:
    """From the end of one to the beginning of the other; nothing where they touch."""
    if one.number != two.number:
        return []
    if one.y == two.y:
        return [(one.end_s, one.y), (two.start_s, two.y), _BREAK] if two.start_s > one.end_s else []
    down = 1 if two.y > one.y else -1
    from_y, to_y = one.y + down * one.half_px, two.y - down * two.half_px
    return [(one.end_s, from_y), (one.end_s, to_y), (two.start_s, to_y), _BREAK]
