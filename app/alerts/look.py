"""What one window says of what one alert is about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.alerts.alert import Detail
from app.alerts.rule import Rule

Side = Literal["over", "unsure", "between", "under"]


@dataclass(frozen=True, slots=True)
class Look:
    """What a window that counts says of one subject; `value` is None where it is not found.

    One that `is_sure` may raise an alert, another only hold it up. `is_found` says that the same
    trouble is still there, so that windows in which it costs little break no row of others.
    """

    value: float | None
    is_sure: bool = True
    is_found: bool = False
    detail: Detail = field(default_factory=Detail)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """The window, how many seconds its steps took, and when it was looked at (Unix seconds)."""

    window_id: str
    epoch: int
    first_step: int
    took_s: float
    now_s: float


def side(rule: Rule, look: Look) -> Side:
    """Where a figure is; a subject that is not found any more is under whatever the rule wants."""
    if look.value is None or rule.above is None:
        return "under"
    if look.value >= rule.above:
        return "over" if look.is_sure else "unsure"
    clear = rule.above if rule.clear is None else rule.clear
    return "between" if look.value >= clear else "under"
