"""The loss that no cause explains, in words."""

from collections.abc import Mapping
from typing import Any

from app import formatting

# A smaller share of the step is not placed, and no sentence is made of it.
MIN_SHARE = 0.05


def unexplained_sentence(block: Mapping[str, Any]) -> str | None:
    """The block in words, without a full stop; None where the share is small."""
    share, of_loss = block["share"], block["share_of_loss"]
    if share < MIN_SHARE:
        return None
    is_all = of_loss is None or of_loss > 0.995
    of_it = "" if is_all else f" ({formatting.percent(of_loss)} of the loss)"
    fact = (
        f"{formatting.percent(share)} of the step time{of_it} is not explained by any known cause"
    )
    place = _place_in_words(block)
    return f"{fact}, most of it in {place}" if place else fact


def _place_in_words(block: Mapping[str, Any]) -> str:
    if block["stop_share"] > 0.5 * block["share"]:
        steps = block["stop_steps"]
        listed = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps, first {steps[0]}"
        return f"stops of all workers (in or before {listed})"
    if block["late_launch_share"] > 0.5 * block["share"]:
        return "late launches of single steps"
    on = "" if block["stage"] is None else f" on stage {block['stage']}"
    if block["optype"] is None:
        return on.removeprefix(" on ")
    return f"{formatting.optype_in_text(block['optype'])}{on}"
