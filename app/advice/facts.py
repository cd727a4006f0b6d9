"""The owner's facts as the command line and the API take them: their limits, a layout as text."""

from app.advice.fix import Facts, Scheduler
from app.errors import InvalidRequest

MAX_LAYERS = 1000  # the search moves them one by one
MAX_MINUTES = 7 * 24 * 60.0  # a week
_MAX_DIGITS = 4


def facts_of(
    *,
    layers: int | None = None,
    layout: str | None = None,
    scheduler: Scheduler | None = None,
    restart_minutes: float | None = None,
    checkpoint_minutes: float | None = None,
) -> Facts:
    """The facts; None is what was not said.

    Raises:
        InvalidRequest: layers are given twice, or a number is not within its limits.
    """
    if layers is not None and layout is not None:
        raise InvalidRequest(
            "give either layers (as many on each stage) or layout (those of each stage), not both"
        )
    if layers is not None and not 1 <= layers <= MAX_LAYERS:
        raise InvalidRequest(f"layers is {layers}: a model has 1 to {MAX_LAYERS}")
    _check_minutes("restart minutes", restart_minutes)
    _check_minutes("checkpoint minutes", checkpoint_minutes)
    by_stage = None if layout is None else parse_layout(layout)
    return Facts(layers, by_stage, scheduler, restart_minutes, checkpoint_minutes)


def parse_layout(text: str) -> tuple[int, ...]:
    """Layers of each stage, from a text such as `9,9,9,6`.

    Raises:
        InvalidRequest: it is no such list, or has no layer, or more than `MAX_LAYERS`.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS for part in parts):
        raise InvalidRequest("layout wants a whole number of layers for each stage: 9,9,9,6")
    layers = tuple(map(int, parts))
    if not 1 <= sum(layers) <= MAX_LAYERS:
        raise InvalidRequest(
            f"layout has {sum(layers)} layers: at least 1 and at most {MAX_LAYERS} are searched"
        )
    return layers


def _check_minutes(name: str, minutes: float | None) -> None:
    if minutes is not None and not 0 <= minutes <= MAX_MINUTES:
        raise InvalidRequest(f"{name}: {minutes:g}; want 0 to {MAX_MINUTES:,.0f}, a week")
