"""An axis of seconds since a step began, with few round labels."""

import math
from typing import Any

from app.charts.figure import axis, title
from app.charts.theme import Theme

_MAX_TICKS = 13
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\u00b5s"))


def time_axis(from_s: float, to_s: float, theme: Theme) -> dict[str, Any]:
    """The axis between two moments; the reader may zoom along it."""
    every_s = _round(max(to_s - from_s, 1e-9) / _MAX_TICKS)
    first = math.ceil(from_s / every_s - 1e-9)
    last = math.floor(to_s / every_s + 1e-9)
    ticks_s = [number * every_s for number in range(first, last + 1)]
    return axis(
        theme,
        range=[from_s, to_s],
        tickvals=ticks_s,
        ticktext=[_label(tick_s, every_s, to_s) for tick_s in ticks_s],
        showgrid=True,
        fixedrange=False,
        title=title("time since the step began", theme),
    )


def _label(at_s: float, every_s: float, to_s: float) -> str:
    # By the end of the axis, so that all its labels have one unit.
    size_s, unit = next((each for each in _UNITS if to_s >= each[0]), _UNITS[-1])
    digits = max(0, -math.floor(math.log10(every_s / size_s) + 1e-9))
    return f"{at_s / size_s + 0.0:,.{digits}f} {unit}"


def _round(spacing_s: float) -> float:
    """The smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, ... that is at least the spacing."""
    power = 10.0 ** math.floor(math.log10(spacing_s))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= spacing_s * 0.999)
