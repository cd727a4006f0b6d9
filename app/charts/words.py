"""How figures are written in sentences, labels and tables: rounded to what can be trusted."""

import html
from collections.abc import Mapping

NOT_MEASURED = "not measured"
TIMES = "\u00d7"
MINUS = "\u2212"

_MAX_HOST_CHARS = 24

Hosts = Mapping[tuple[int, int], str]


def ratio(value: float) -> str:
    """A slowdown with two decimals and the multiplication sign."""
    return f"{value:.2f}{TIMES}"


def percent(share: float) -> str:
    """A share as a percentage: whole from 10 % on, one decimal below, true minus sign."""
    value = 100 * share
    digits = 0 if abs(value) >= 9.95 else 1
    text = f"{abs(value):.{digits}f}".removesuffix(".0")
    return f"{MINUS if value < 0 and text != '0' else ''}{text} %"


def whole(number: int) -> str:
    """An integer with thousands separated."""
    return f"{number:,}"


def seconds(value_s: float) -> str:
    """A duration with three significant digits, in ms below one second."""
    return f"{value_s:.3g} s" if value_s >= 1 else f"{1e3 * value_s:.3g} ms"


def span(value_s: float) -> str:
    """How long ago or for how long, in the largest unit that fits: 12 minutes."""
    for unit, size_s in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if value_s >= size_s:
            return counted(int(value_s // size_s), unit)
    return counted(int(value_s), "second")


def counted(number: int, noun: str) -> str:
    """A number with its noun in singular or plural."""
    return f"{whole(number)} {noun}{'' if number == 1 else 's'}"


def worker(dp_rank: int, stage: int, hosts: Hosts | None = None) -> str:
    """A worker's name, with its host where that is known."""
    host = (hosts or {}).get((dp_rank, stage))
    return f"dp {dp_rank}, stage {stage}" + (f" on {host}" if host else "")


def markup(text: str) -> str:
    """Text from outside for a chart's labels, where Plotly would read tags; cut to fit."""
    short = text if len(text) <= _MAX_HOST_CHARS else text[: _MAX_HOST_CHARS - 1] + "\u2026"
    return html.escape(short, quote=False)
