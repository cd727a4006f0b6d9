"""Formats figures for sentences, labels and tables, rounded to what can be trusted."""

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

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

Hosts = Mapping[tuple[int, int], str]
ClockDetail = Literal["seconds", "minutes", "days"]


def ratio(value: float) -> str:
    """A slowdown with two decimals and the multiplication sign."""
    return f"{value:.2f}{TIMES}"


def percent(share: float) -> str:
    """A share as a percentage: whole from 10 % on, one decimal below, true minus sign."""
    value = 100 * share
    digits = 0 if abs(value) >= 9.95 else 1
    text = f"{abs(value):.{digits}f}".removesuffix(".0")
    return f"{MINUS if value < 0 and text != '0' else ''}{text} %"


def measured(value: float | None, in_words: Callable[[float], str]) -> str:
    """A figure in words; that it is not measured, where it is None or not finite."""
    return NOT_MEASURED if value is None or not math.isfinite(value) else in_words(value)


def confidence(share: float) -> str:
    """A confidence in words and as a whole percentage: high confidence, 95 %."""
    level, figure = confidence_figure(share).split(", ")
    return f"{level} confidence, {figure}"


def confidence_figure(share: float) -> str:
    """A confidence beside its label: high, 95 %. As in frontend/js/lib/formatting.js."""
    # Half a percent is rounded up, as in JavaScript.
    percents = math.floor(100 * share + 0.5)
    level = next(word for least, word in _CONFIDENCES if percents >= least)
    return f"{level}, {percents} %"


_CONFIDENCES = ((80, "high"), (60, "medium"), (0, "low"))


def bytes_text(number: int) -> str:
    """A size with up to three digits, in steps of 1,000: 12 kB."""
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:,.0f} {unit}" if value >= 99.5 or unit == "B" else f"{value:.3g} {unit}"


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


def rough_hours(hours: float) -> str:
    """An estimate of GPU-hours, such as of a day, with two digits: 0.12, 4.3, 1,500."""
    if not hours:
        return "0"
    digits = 1 - math.floor(math.log10(abs(hours)))
    rounded = round(hours, digits)
    # As in JavaScript: 9.97 becomes 10, not 10.0.
    text = f"{abs(rounded):,.{max(0, digits)}f}"
    text = text.rstrip("0").removesuffix(".") if "." in text else text
    return f"{MINUS if rounded < 0 else ''}{text}"


def rough_gpu_hours(hours: float) -> str:
    """An estimate of GPU-hours in words: about 1,500 GPU-h."""
    return f"about {rough_hours(hours)} GPU-h"


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


def clock_label(unix_s: float, detail: ClockDetail) -> str:
    """A time of day in UTC as a short label, without its zone: 02:41, 02:41:07, 23 Nov 02:41."""
    at = datetime.fromtimestamp(unix_s, UTC)
    if detail == "days":
        return f"{at.day} {at:%b %H:%M}"
    return f"{at:%H:%M:%S}" if detail == "seconds" else f"{at:%H:%M}"


def unix_time(text: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time; None where that is not known."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def utc_timestamp(unix_s: float | None) -> str | None:
    """A time in RFC 3339, in UTC and to the second, as results have it; None where not known."""
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def short_duration(value_s: float) -> str:
    """A duration in one rounded unit, as beside a time: 40 s, 12 min, 3 h, 2 days."""
    for unit, size_s, up_to_s in (("s", 1, 95), ("min", 60, 5_700), ("h", 3_600, 172_800)):
        if value_s < up_to_s:
            return f"{max(0, round(value_s / size_s))} {unit}"
    return plural(round(value_s / 86_400), "day")


def since_words(
    step: int, at_s: float | None, lasted_s: float | None = None, *, now_s: float
) -> str:
    """Time, step and duration of an onset, as far as known: 02:41 UTC, step 30, 12 min."""
    words = [] if at_s is None else [utc_time(at_s, now_s)]
    words.append(f"step {count(step)}")
    if at_s is not None and lasted_s is not None and lasted_s >= 1:
        words.append(short_duration(lasted_s))
    return ", ".join(words)


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


def ordinal(number: int) -> str:
    """A number's place in a row: 1st, 2nd, 3rd, 4th, 11th, 22nd."""
    is_teen = number % 100 in (11, 12, 13)
    suffix = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{count(number)}{suffix}"


def worker(dp_rank: int, stage: int, hosts: Hosts | None = None, rank: int | None = None) -> str:
    """A worker's name, with its host and global rank where they are known."""
    host = (hosts or {}).get((dp_rank, stage)) or None
    return culprit_name(dp_rank=dp_rank, stage=stage, host=host, rank=rank)


def optype_label(optype: str) -> str:
    """An operation type in words."""
    return OPTYPE_LABELS.get(optype, optype.replace("-", " ").capitalize())


def optype_in_text(optype: str) -> str:
    """An operation type in words within a sentence: backward compute."""
    return lower_first(optype_label(optype))


def culprit_name(
    *,
    dp_rank: int | None = None,
    stage: int | None = None,
    host: str | None = None,
    rank: int | None = None,
    ranks: Sequence[int] = (),
    local_rank: int | None = None,
    num_workers: int | None = None,
    names_unknown_host: bool = False,
) -> str:
    """A culprit by host, global ranks and place, as far as these are known; "" where none is.

    host-043, rank 11 (dp 3, stage 1), GPU 5; host-017 (ranks 8 to 15, all 8 of its workers). As in
    frontend/js/components/culprits.js. A host is isolated against other directions of text. Of
    several `ranks`, `rank` is the first; `num_workers` is of a host whose workers are all slow.
    With `names_unknown_host`, a worker says that its host was not reported.
    """
    place = ", ".join(
        f"{word} {number}"
        for word, number in (("dp", dp_rank), ("stage", stage))
        if number is not None
    )
    subject = rank_words(rank, ranks)
    subject = (f"{subject} ({place})" if place else subject) if subject else place
    words = [bidi_isolated(host)] if host is not None else []
    if host is not None and num_workers is not None:
        slow_workers = f"all {count(num_workers)} of its workers"
        words = [f"{words[0]} ({', '.join(filter(None, [subject, slow_workers]))})"]
    elif host is not None and subject and subject == place:
        words = [f"{words[0]} ({place})"]
    elif subject:
        words.append(subject)
    if host is None and names_unknown_host and rank is not None:
        words.append("host not reported")
    if local_rank is not None:
        words.append(f"GPU {local_rank}")
    return ", ".join(words)


def rank_words(rank: int | None, several: Sequence[int] = ()) -> str:
    """Global ranks: rank 11, ranks 88 to 95; "" where unknown."""
    numbers = several or ([] if rank is None else [rank])
    return lower_first(ranks(numbers)) if numbers else ""


def ranks(numbers: Sequence[int]) -> str:
    """Ranks by their numbers: Rank 11, Ranks 3, 7 and 9, Ranks 8 to 15; at most four runs."""
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    shown = _runs(numbers)
    if len(shown) == 1:
        return f"Ranks {shown[0][0]} to {shown[0][-1]}"
    if len(shown) <= _MAX_RANKS:
        texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in shown]
    else:
        texts = [str(number) for number in numbers[: _MAX_RANKS - 1]]
        texts.append(f"{count(len(numbers) - _MAX_RANKS + 1)} more")
    *first, last = texts
    return f"Ranks {', '.join(first)} and {last}"


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Successive numbers together, where there are at least three of them."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [
        part for run in runs for part in ([run] if len(run) > 2 else [[number] for number in run])
    ]


def lower_first(text: str) -> str:
    """The text with its first letter in lower case."""
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


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
