"""How figures are written in sentences, labels and tables: rounded to what can be trusted."""

import html
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

NOT_MEASURED = "not measured"
TIMES = "\u00d7"
MINUS = "\u2212"

_MAX_HOST_CHARS = 24
_MAX_RANKS = 4

# Marks that turn the direction of the text around them, and what keeps a direction inside.
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_PLAIN_TIMES = re.compile(r"(?<=\.\d)x(?= )|(?<=\.\d\d)x(?= )")
_ISOLATE, _END_ISOLATE = "\u2068", "\u2069"

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


def brief(value_s: float) -> str:
    """A duration of which only the size matters: two digits, or whole milliseconds."""
    value_ms = 1e3 * value_s
    if value_ms >= 1e3:
        return f"{value_s:.2g} s" if value_s < 99.5 else f"{value_s:.0f} s"
    return f"{value_ms:.0f} ms" if value_ms >= 10 else f"{max(0.0, value_ms):.2g} ms"


def gpu_hours(hours: float) -> str:
    """GPU-hours, whole from ten on."""
    return f"{hours:.1f} GPU-h" if hours < 9.95 else f"{whole(round(hours))} GPU-h"


def span(value_s: float) -> str:
    """How long ago or for how long, in the largest unit that fits: 12 minutes."""
    for unit, size_s in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if value_s >= size_s:
            return counted(int(value_s // size_s), unit)
    return counted(int(value_s), "second")


def moment(unix_s: float, now_s: float) -> str:
    """A time of day in UTC, and with its date when that is another one than now's."""
    at, now = datetime.fromtimestamp(unix_s, UTC), datetime.fromtimestamp(now_s, UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def about(value_s: float) -> str:
    """How much longer, as roughly as it can be known: 7 s, 40 s, 3 min."""
    if value_s < 10:
        return f"{max(1, round(value_s))} s"
    if value_s < 95:
        return f"{5 * round(value_s / 5)} s"
    return f"{whole(round(value_s / 60))} min" if value_s < 5_400 else span(value_s)


def counted(number: int, noun: str) -> str:
    """A number with its noun in singular or plural."""
    return f"{whole(number)} {noun}{'' if number == 1 else 's'}"


def worker(dp_rank: int, stage: int, hosts: Hosts | None = None) -> str:
    """A worker's name, with its host where that is known."""
    host = (hosts or {}).get((dp_rank, stage))
    return f"dp {dp_rank}, stage {stage}" + (f" on {contained(host)}" if host else "")


def gpu(rank: int | None, place: str, host: str = "", local_rank: int | None = None) -> str:
    """A GPU by its global rank, place, host and number there, as far as these are known.

    Rank 11 (dp 3, stage 1) on host-043, GPU 5, without its first capital.
    """
    name = place if rank is None else f"rank {rank}" + (f" ({place})" if place else "")
    where = f"{name} on {host}" if name and host else name or host
    return where if local_rank is None else f"{where}, GPU {local_rank}"


def ranks(numbers: Sequence[int]) -> str:
    """Up to four ranks by their numbers, more by the first three and how many follow."""
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    shown = [str(number) for number in numbers]
    if len(shown) > _MAX_RANKS:
        shown = [*shown[: _MAX_RANKS - 1], f"{whole(len(shown) - _MAX_RANKS + 1)} more"]
    *first, last = shown
    return f"Ranks {', '.join(first)} and {last}"


def contained(text: str) -> str:
    """Text from outside without power over the direction of the text around it."""
    unmarked = _DIRECTION_MARKS.sub("", text)
    return unmarked if unmarked.isascii() else f"{_ISOLATE}{unmarked}{_END_ISOLATE}"


def signs(sentence: str) -> str:
    """A sentence with the multiplication sign where it is written 1.6x."""
    return _PLAIN_TIMES.sub(TIMES, sentence)


def markup(text: str, most_chars: int = _MAX_HOST_CHARS) -> str:
    """Text from outside for a chart's labels, where Plotly would read tags; cut to fit.

    The end stays: it is what tells the hosts of a cluster apart.
    """
    short = text if len(text) <= most_chars else "\u2026" + text[1 - most_chars :]
    return html.escape(contained(short), quote=False)
