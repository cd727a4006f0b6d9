"""Formats figures for sentences, labels and tables, rounded to what can be trusted."""

import html
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

NOT_MEASURED = "not measured"
TIMES = "\u00d7"
MINUS = "\u2212"

_MAX_LABEL_CHARS = 24
_MAX_RANKS = 4

# Unicode marks that change text direction, and the isolates that contain a direction.
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LETTER_X = re.compile(r"(?<=[ (])(\d[\d,]*(?:\.\d+)?)x(?=[ ,;.)]|$)")
_ISOLATE, _END_ISOLATE = "\u2068", "\u2069"

OPTYPE_LABELS = {
    "forward-compute": "Forward compute",
    "backward-compute": "Backward compute",
    "optimizer": "Optimizer",
    "gc": "Garbage collection",
    "forward-pp-comm": "Pipeline forward transfer",
    "backward-pp-comm": "Pipeline backward transfer",
    "params-all-gather": "Parameter gather",
    "grads-reduce-scatter": "Gradient reduce",
    "separate-grads-all-reduce": "Separate gradient reduce",
    "layernorm-grads-all-reduce": "Layer-norm gradient reduce",
    "embedding-grads-all-reduce": "Embedding gradient reduce",
    "optimizer-clip-main-grad": "Gradient clipping",
}

# As in frontend/js/lib/formatting.js, in lower case.
_CAUSE_NAMES = {
    "slow-worker": "slow worker",
    "late-host": "late host",
    "stage-imbalance": "long stage",
    "sequence-imbalance": "sequence lengths",
    "expert-imbalance": "uneven experts",
    "gc-pause": "garbage collection",
    "slow-link": "slow link",
    "flapping-link": "flapping link",
    "data-loading": "data loading",
    "allocator-stall": "allocator stalls",
    "cpu-contention": "busy host",
    "checkpoint-stall": "checkpoints",
    "job-stop": "single stop",
    "uniform-slowdown": "everything is slower",
    "silent-worker": "silent worker",
    "not-explained": "not explained",
}

CAUSE_PHRASES = {
    "slow-worker": "a slow worker",
    "late-host": "a late host",
    "stage-imbalance": "a long stage",
    "sequence-imbalance": "uneven sequence lengths",
    "expert-imbalance": "uneven loads of experts",
    "gc-pause": "garbage collection",
    "slow-link": "a slow link",
    "flapping-link": "a flapping link",
    "data-loading": "slow data loading",
    "allocator-stall": "allocator stalling",
    "cpu-contention": "a busy host",
    "checkpoint-stall": "long checkpoints",
    "job-stop": "a single long stop",
    "uniform-slowdown": "a uniform slowdown",
    "silent-worker": "a silent worker",
}

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


def confidence(share: float) -> str:
    """A confidence in words and as a whole percentage: high confidence, 95 %."""
    level, figure = confidence_figure(share).split(", ")
    return f"{level} confidence, {figure}"


def confidence_figure(share: float) -> str:
    """A confidence beside its label: high, 95 %. As in frontend/js/lib/formatting.js."""
    # Half a percent is rounded up, as in JavaScript.
    whole = math.floor(100 * share + 0.5)
    level = next(word for least, word in _CONFIDENCES if whole >= least)
    return f"{level}, {whole} %"


_CONFIDENCES = ((80, "high"), (60, "medium"), (0, "low"))


def count(number: int) -> str:
    """An integer with thousands separated."""
    return f"{number:,}"


def seconds(value_s: float) -> str:
    """A duration with three significant digits, in ms below one second; whole from 1,000 s on."""
    if value_s >= 999.5:
        return f"{value_s:,.0f} s"
    return f"{value_s:.3g} s" if value_s >= 0.9995 else f"{1e3 * value_s:.3g} ms"


def short_seconds(value_s: float) -> str:
    """A rough duration: two digits, or whole milliseconds."""
    value_ms = 1e3 * value_s
    if value_ms >= 1e3:
        return f"{value_s:.2g} s" if value_s < 99.5 else f"{value_s:.0f} s"
    return f"{value_ms:.0f} ms" if value_ms >= 10 else f"{max(0.0, value_ms):.2g} ms"


def hour_count(hours: float) -> str:
    """A number of GPU-hours: one decimal below ten, else whole."""
    return f"{hours:.1f}" if abs(hours) < 9.95 else count(round(hours))


def gpu_hours(hours: float) -> str:
    """GPU-hours with their unit."""
    return f"{hour_count(hours)} GPU-h"


def duration(value_s: float) -> str:
    """A duration in the largest unit that fits: 12 minutes."""
    for unit, size_s in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if value_s >= size_s:
            return plural(int(value_s // size_s), unit)
    return plural(int(value_s), "second")


def utc_time(unix_s: float, now_s: float) -> str:
    """A time of day in UTC, and with its date when that is another one than now's."""
    at, now = datetime.fromtimestamp(unix_s, UTC), datetime.fromtimestamp(now_s, UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def rough_duration(value_s: float) -> str:
    """A remaining time, rounded for estimates: 7 s, 40 s, 3 min."""
    if value_s < 10:
        return f"{max(1, round(value_s))} s"
    if value_s < 95:
        return f"{5 * round(value_s / 5)} s"
    return f"{count(round(value_s / 60))} min" if value_s < 5_400 else duration(value_s)


def plural(number: int, noun: str) -> str:
    """A number with its noun in singular or plural."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def worker(dp_rank: int, stage: int, hosts: Hosts | None = None) -> str:
    """A worker's name, with its host where that is known."""
    host = (hosts or {}).get((dp_rank, stage))
    return f"dp {dp_rank}, stage {stage}" + (f" on {bidi_isolated(host)}" if host else "")


def optype_label(optype: str) -> str:
    """An operation type in words."""
    return OPTYPE_LABELS.get(optype, optype.replace("-", " ").capitalize())


def optype_in_text(optype: str) -> str:
    """An operation type in words within a sentence: backward compute."""
    label = optype_label(optype)
    return label[:1].lower() + label[1:]


def cause_name(name: str, *, is_last_stage: bool = False) -> str:
    """A cause in lower case, as a chip has it; `is_last_stage` where its only culprit is that."""
    if name == "stage-imbalance" and is_last_stage:
        return "long last stage"
    return _CAUSE_NAMES.get(name, name.replace("-", " "))


def cause_phrase(name: str, num_culprits: int | None = None) -> str:
    """A cause as a noun phrase in the singular: a late host; slow workers are counted if known."""
    if name == "slow-worker" and num_culprits:
        return "one slow worker" if num_culprits == 1 else plural(num_culprits, "slow worker")
    return CAUSE_PHRASES.get(name, name.replace("-", " "))


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
        shown = [*shown[: _MAX_RANKS - 1], f"{count(len(shown) - _MAX_RANKS + 1)} more"]
    *first, last = shown
    return f"Ranks {', '.join(first)} and {last}"


def bidi_isolated(text: str) -> str:
    """Untrusted text, isolated so that it cannot change the direction of text around it."""
    unmarked = _DIRECTION_MARKS.sub("", text)
    return unmarked if unmarked.isascii() else f"{_ISOLATE}{unmarked}{_END_ISOLATE}"


def with_times_sign(sentence: str) -> str:
    """The sentence with 1.6x written with the multiplication sign."""
    return _LETTER_X.sub(rf"\1{TIMES}", sentence)


def chart_label(text: str, max_chars: int = _MAX_LABEL_CHARS) -> str:
    """Untrusted text, escaped for Plotly's labels and cut to fit.

    The end is kept: hosts of a cluster differ there.
    """
    short = text if len(text) <= max_chars else "\u2026" + text[1 - max_chars :]
    return html.escape(bidi_isolated(short), quote=False)
