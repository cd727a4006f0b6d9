"""What the critical path of a step is made of, part by part."""

from collections import defaultdict

from app import words
from app.charts.bars import Bar, bar_layout, bar_trace
from app.charts.figure import Figure, meta
from app.charts.optypes import friendly
from app.charts.theme import Theme
from app.engine.chain import Link
from app.engine.critical_path import CriticalPath
from app.engine.timeline.lanes import activity_of
from app.trace.ops import Kind, OpTypes

_MAX_PARTS = 8
_ROW_PX = 30
_LAUNCH = "Launch delay"
_OTHER = "All other parts"


def path_parts(path: CriticalPath, op_types: OpTypes, *, theme: Theme) -> Figure:
    """Seconds by part, longest first; all parts together are the path's length."""
    parts = parts_of(path, op_types)
    shown = _shown(parts)
    longest_s = max((abs(part_s) for part_s in shown.values()), default=0.0)
    bars = [
        Bar(part, part_s / longest_s if longest_s else 0.0, _colour(part, theme))
        for part, part_s in shown.items()
    ]
    texts = [words.seconds(part_s) for part_s in shown.values()]
    in_seconds = {"text": texts, "hovertemplate": "%{customdata}<br><b>%{text}</b><extra></extra>"}
    return Figure(
        data=[bar_trace(bars, theme) | in_seconds],
        layout=bar_layout(bars, theme, row_px=_ROW_PX, full_share=1.0),
        meta=meta(
            _sentence(path, parts),
            ["part", "time", "share of the path"],
            [
                [part, words.seconds(part_s), words.percent(_share(part_s, path.length_s))]
                for part, part_s in parts.items()
            ],
        ),
    )


def parts_of(path: CriticalPath, op_types: OpTypes) -> dict[str, float]:
    """Seconds of the path by part, longest first; parts that took nothing are left out."""
    found: dict[str, float] = defaultdict(float)
    for link in path.links:
        found[_part(link, op_types)] += link.own_s
        found[_LAUNCH] += link.gap_s
    longest_first = sorted(found.items(), key=lambda item: -item[1])
    return {part: part_s for part, part_s in longest_first if abs(part_s) > 1e-9}


def _part(link: Link, op_types: OpTypes) -> str:
    spec = op_types.by_code[op_types.codes[link.optype]]
    match activity_of(spec):
        case "forward" | "backward":
            return f"Stage {link.stage} compute"
        case "optimizer":
            return "Optimizer"
        case "other":
            return words.markup(friendly(link.optype))
    if spec.kind is Kind.P2P:
        return "Transfers between stages"
    return "Parameters gathered" if link.optype == "params-all-gather" else "Gradients and norms"


def _shown(parts: dict[str, float]) -> dict[str, float]:
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
    whole = words.seconds(path.length_s)
    return (
        f"Of the critical path's {whole}, {words.seconds(part_s)} are {part[0].lower()}{part[1:]}."
    )


def _share(part_s: float, whole_s: float) -> float:
    return part_s / whole_s if whole_s else 0.0
