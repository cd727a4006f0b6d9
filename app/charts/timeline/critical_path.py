"""The critical path of a step: outlined on the timeline, and its length by part."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from app import formatting
from app.charts.base.bars import Bar, bar_layout, bar_trace
from app.charts.base.figure import PlotlyFigure, meta, numbers
from app.charts.base.plotly import PlotlyTrace
from app.charts.base.theme import Theme
from app.charts.timeline.bars import LaneLayout
from app.engine.timeline.critical_path import CriticalPath, PathLink
from app.engine.timeline.step_run import activity_of
from app.trace.ops import OpKind, OpTypes

Point = tuple[float | None, float | None]
_LINE_BREAK: Point = (None, None)
_MIN_TRANSFER_PX = 2.0
_MIN_BAR_PX = 4.0


@dataclass(frozen=True, slots=True)
class PathBox:
    """An outlined stretch of a lane; `half_px` is half its height, `number` counts the links."""

    number: int
    start_s: float
    end_s: float
    y: float
    half_px: float

    def outline(self) -> list[Point]:
        """Its four sides."""
        top, bottom = self.y - self.half_px, self.y + self.half_px
        return [
            (self.start_s, top),
            (self.end_s, top),
            (self.end_s, bottom),
            (self.start_s, bottom),
            (self.start_s, top),
            _LINE_BREAK,
        ]


def path_line(boxes: Sequence[PathBox], theme: Theme) -> PlotlyTrace:
    """One line trace with all outlines and the lines that join them."""
    points = [point for box in boxes for point in box.outline()]
    points += [point for before, after in pairwise(boxes) for point in _join(before, after)]
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


def path_boxes(
    links: Sequence[PathLink], dp_rank: int, op_types: OpTypes, places: LaneLayout, px_s: float
) -> list[PathBox]:
    """The outlines of those links that one dp rank has; slivers of one lane are one outline."""
    boxes: list[PathBox] = []
    for box in _boxes_of_links(links, dp_rank, op_types, places, px_s):
        if boxes and _is_sliver_beside(boxes[-1], box, px_s):
            boxes[-1] = replace(box, start_s=boxes[-1].start_s)
        else:
            boxes.append(box)
    return boxes


def _boxes_of_links(
    links: Sequence[PathLink], dp_rank: int, op_types: OpTypes, places: LaneLayout, px_s: float
) -> Iterator[PathBox]:
    now_s, number = 0.0, 0
    for link in links:
        start_s = now_s + link.gap_s
        now_s = start_s + link.own_s
        if link.dp_rank != dp_rank:
            number += 1  # links after another replica's are not joined to earlier ones
            continue
        spec = op_types.by_code[op_types.codes[link.optype]]
        if activity_of(spec) != "transfer":
            half_px = places.bar_px / 2 + places.clear_px
            yield PathBox(number, start_s, now_s, places.bar_y(0, link.stage), half_px)
        elif link.own_s >= _MIN_TRANSFER_PX * px_s:
            half_px = places.transfer_px / 2 + places.clear_px - 1
            yield PathBox(number, start_s, now_s, places.transfer_y(0, link.stage), half_px)


def _is_sliver_beside(before: PathBox, after: PathBox, px_s: float) -> bool:
    narrow_s = _MIN_BAR_PX * px_s
    is_beside = before.y == after.y and abs(after.start_s - before.end_s) < px_s
    return is_beside and any(box.end_s - box.start_s < narrow_s for box in (before, after))


def _join(before: PathBox, after: PathBox) -> list[Point]:
    """The line from one box to the next; empty where they touch."""
    if before.number != after.number:
        return []
    if before.y == after.y:
        across = [(before.end_s, before.y), (after.start_s, after.y), _LINE_BREAK]
        return across if after.start_s > before.end_s else []
    down = 1 if after.y > before.y else -1
    from_y, to_y = before.y + down * before.half_px, after.y - down * after.half_px
    return [(before.end_s, from_y), (before.end_s, to_y), (after.start_s, to_y), _LINE_BREAK]


_MAX_PARTS = 8
_ROW_PX = 30
_LAUNCH = "Launch delay"
_OTHER = "All other parts"


def path_parts(path: CriticalPath, op_types: OpTypes, *, theme: Theme) -> PlotlyFigure:
    """Seconds by part, longest first; all parts together are the path's length."""
    parts = parts_of(path, op_types)
    shown = _largest_parts(parts)
    longest_s = max((abs(part_s) for part_s in shown.values()), default=0.0)
    bars = [
        Bar(part, part_s / longest_s if longest_s else 0.0, _colour(part, theme))
        for part, part_s in shown.items()
    ]
    texts = [formatting.seconds(part_s) for part_s in shown.values()]
    whole_s = path.length_s or math.inf
    hover = "%{customdata}<br><b>%{text}</b><extra></extra>"
    return PlotlyFigure(
        data=[bar_trace(bars, theme) | {"text": texts, "hovertemplate": hover}],
        layout=bar_layout(bars, theme, row_px=_ROW_PX, full_share=1.0),
        meta=meta(
            _sentence(path, parts),
            ["part", "time", "share of the path"],
            [
                [part, formatting.seconds(part_s), formatting.percent(part_s / whole_s)]
                for part, part_s in parts.items()
            ],
        ),
    )


def parts_of(path: CriticalPath, op_types: OpTypes) -> dict[str, float]:
    """Seconds of the path by part, longest first; parts that took nothing are left out."""
    total_s: dict[str, float] = defaultdict(float)
    for link in path.links:
        total_s[_part_of(link, op_types)] += link.own_s
        total_s[_LAUNCH] += link.gap_s
    longest_first = sorted(total_s.items(), key=lambda item: -item[1])
    return {part: part_s for part, part_s in longest_first if abs(part_s) > 1e-9}


def _part_of(link: PathLink, op_types: OpTypes) -> str:
    spec = op_types.by_code[op_types.codes[link.optype]]
    match activity_of(spec):
        case "forward" | "backward":
            return f"Stage {link.stage} compute"
        case "optimizer":
            return "Optimizer"
        case "other":
            return formatting.chart_label(formatting.optype_label(link.optype))
    if spec.kind is OpKind.P2P:
        return "Transfers between stages"
    return "Parameters gathered" if link.optype == "params-all-gather" else "Gradients and norms"


def _largest_parts(parts: dict[str, float]) -> dict[str, float]:
    if len(parts) <= _MAX_PARTS:
        return parts
    first = dict(list(parts.items())[: _MAX_PARTS - 1])
    return first | {_OTHER: sum(parts.values()) - sum(first.values())}


def _colour(part: str, theme: Theme) -> str:
    if part.startswith("Stage"):
        return theme.bwd
    if part in (_LAUNCH, _OTHER):
        return theme.line2
    colours = {"Optimizer": theme.upd, "Garbage collection": theme.sim}
    return colours.get(part, theme.xfer)


def _sentence(path: CriticalPath, parts: dict[str, float]) -> str:
    if not parts:
        return "The critical path takes no time."
    part, part_s = next(iter(parts.items()))
    total, largest = formatting.seconds(path.length_s), formatting.seconds(part_s)
    return f"Of the critical path's {total}, {largest} are {part[0].lower()}{part[1:]}."
