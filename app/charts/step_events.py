"""What happened at a step: a line through the charts over time, and a label over the first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.step_axis import StepAxis, above
from app.charts.theme import Theme

# Labels nearer to each other than this share of the width would touch.
_ROOM = 0.1


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Something that happened at a step, in a word or two."""

    step: int
    text: str


def lines(events: Sequence[StepEvent], at: StepAxis, theme: Theme) -> list[dict[str, Any]]:
    """A dotted line before each event's step."""
    return [
        {
            "type": "line",
            "x0": x,
            "x1": x,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": theme.ink2, "width": 1, "dash": "dot"},
        }
        for x in sorted({x for x, _ in _placed(events, at)})
    ]


def labels(events: Sequence[StepEvent], at: StepAxis, theme: Theme) -> list[dict[str, Any]]:
    """The events' words and the gaps' above the plot; those that would touch another are left out.

    Gaps first: nothing else says how much is missing there.
    """
    kept = at.labels(theme)
    room = _ROOM * (at.end + 0.5)
    for x, text in _placed(events, at):
        if all(abs(x - each["x"]) >= room for each in kept):
            kept.append(above(x, text, theme))
    return kept


def _placed(events: Sequence[StepEvent], at: StepAxis) -> list[tuple[float, str]]:
    found = [(at.of(event.step), event.text) for event in events]
    return [(x - 0.5, text) for x, text in found if x is not None]
