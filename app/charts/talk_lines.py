"""Lines of text under the bars of the loss: how long communication waits, and moves data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app import words
from app.charts.theme import Theme

# A row's upper part has the share of the loss, its lower part the text.
_LOSS_AT, _LOSS_BAND = -0.16, 0.42
_TEXT_AT = 0.24


@dataclass(frozen=True, slots=True)
class Talk:
    """Mean seconds a step and worker in one type of communication."""

    transfer_s: float
    wait_s: float


def placed(trace: dict[str, Any], talk: Sequence[Talk | None]) -> dict[str, Any]:
    """The bars of the loss, a little higher in their rows where there is text under them."""
    if not any(talk):
        return trace
    y = [row + _LOSS_AT if each else row for row, each in enumerate(talk)]
    return {**trace, "y": y, "width": _LOSS_BAND}


def talk_lines(talk: Sequence[Talk | None], theme: Theme) -> list[dict[str, Any]]:
    """Waiting in words under each bar, and moving data too in its hover text."""
    return [
        {
            "x": 0,
            "xanchor": "left",
            "xshift": 2,
            "y": row + _TEXT_AT,
            "text": f"waits {words.brief(each.wait_s)} a step",
            "hovertext": f"a step and worker: {words.brief(each.transfer_s)} moving data, "
            f"{words.brief(each.wait_s)} waiting",
            "showarrow": False,
            "font": {"size": 11, "color": theme.ink2},
        }
        for row, each in enumerate(talk)
        if each is not None
    ]
