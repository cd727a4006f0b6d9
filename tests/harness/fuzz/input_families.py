"""Families of hostile inputs, one input for each size, and how their cost grows with it.

A family is a function of a size in bytes. Its cost is CPU seconds, and the exponent is that of the
power of the size with which the cost grows: 1 for twice the time at twice the size, 2 for four
times.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from app.main import GC_THRESHOLDS

Family = Callable[[int], str]
T = TypeVar("T")
# Below this many seconds at the largest size, growth is that of the clock's noise.
MIN_COST_S = 0.02
MAX_EXPONENT = 1.2
MAX_BLOCKED_S = 0.05
# Of what looks wrong: another process may have been in the way. Growth is told by the lowest cost
# at each size, which no number of repeats hides; a block that comes now and then would be hidden.
_MAX_REPEATS = 8
_MAX_REPEATS_OF_BLOCKS = 3


def repeated(unit: str, before: str = "", after: str = "") -> Family:
    """The unit again and again."""
    return lambda size: before + unit * max(1, size // len(unit)) + after


def _numbered(unit: Callable[[int], str], before: str = "", after: str = "") -> Family:
    """Units that differ by their number."""
    width = len(unit(100_000))
    return lambda size: before + "".join(map(unit, range(max(1, size // width)))) + after


def _indented(size: int) -> str:
    depth = max(1, int(math.sqrt(2 * size)))
    return "".join(f"{' ' * level}a:\n" for level in range(depth))


# What a query parameter or a path may say: lists, ranges, patterns, dates, numbers.
TEXTS: Mapping[str, Family] = {
    "letters": repeated("a"),
    "digits": repeated("1"),
    "spaces": repeated(" "),
    "stars": repeated("*"),
    "stars between letters": repeated("*a"),
    "question marks": repeated("?"),
    "brackets": repeated("["),
    "parentheses": repeated("("),
    "commas": repeated("1,"),
    "ranges": repeated("1-1,"),
    "different ranges": _numbered(lambda number: f"{2 * number}-{2 * number + 1},"),
    "dashes": repeated("-"),
    "dots": repeated("."),
    "colons": repeated("a:"),
    "slashes": repeated("/a"),
    "spaced words": repeated("a "),
    "signs": repeated("+"),
    "percent": repeated("%"),
    "letters then none": repeated("a", after="!"),
    "accents": repeated("e\u0301"),
}

YAML: Mapping[str, Family] = {
    "open lists": repeated("["),
    "open mappings": repeated("{"),
    "lists": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "mappings in mappings": repeated("{a: "),
    "keys in lists": repeated("[? "),
    "keys in keys": repeated("? "),
    "dashes": repeated("- "),
    "indentation": _indented,
    "mappings in a line": repeated("a: b, ", "{", "}"),
    "items in a line": repeated("a,", "[", "]"),
    "quoted keys in a line": repeated('"a": b, ', "{", "}"),
    "keys": _numbered(lambda number: f"key{number}: 1\n"),
    "equal keys": repeated("k: 1\n"),
    "anchors": repeated("- &a 1\n"),
    "aliases": repeated("- *a\n", "- &a 1\n"),
    "tags": repeated("- !a 1\n"),
    "tag directives": _numbered(lambda number: f"%TAG !a{number}! tag:a\n", after="--- a\n"),
    "documents": repeated("--- a\n"),
    "directives of documents": _numbered(lambda number: f"--- a\n...\n%TAG !a{number}! tag:a\n"),
    "escapes": repeated("\\x41", '"', '"'),
    "open quote": repeated("a", '"'),
    "folded lines": repeated(" a\n\n", ">\n"),
    "line ends": repeated("\n", "a:\n  b", "c"),
    "comments": repeated("#\n"),
    "long words": repeated("a"),
    "words": repeated("a "),
    "base 60": repeated("1:", "a: 1:", "1\n"),
    "digits": repeated("9", "a: "),
    "rules": _numbered(
        lambda number: f"  - name: a{number}\n    on: slowdown\n    above: 1.2\n", "rules:\n"
    ),
    "wrong rules": repeated("  - {a: b}\n", "rules:\n"),
    "inhibited rules": _numbered(
        lambda number: (
            f"  - {{name: a{number}, on: slowdown, above: 1.2, inhibits: [a{number ^ 1}]}}\n"
        ),
        "rules:\n",
    ),
}

# Values of JSON, as they are written.
JSON: Mapping[str, Family] = {
    "long text": repeated("a", '"', '"'),
    "escapes": repeated("\\u0041", '"', '"'),
    "pattern": repeated("*a", '"', '"'),
    "ranges": repeated("1-1,", '"', '1"'),
    "digits": repeated("1"),
    "fraction": repeated("1", "0."),
    "lists in lists": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "open lists": repeated("["),
    "objects in objects": lambda size: '{"a":' * (size // 6) + "1" + "}" * (size // 6),
    "numbers": repeated("1,", "[", "1]"),
    "different numbers": _numbered(lambda number: f"{number},", "[", "1]"),
    "texts": repeated('"a",', "[", '"a"]'),
    "different texts": _numbered(lambda number: f'"a{number}",', "[", '"a"]'),
    "empty lists": repeated("[],", "[", "[]]"),
    "empty objects": repeated("{},", "[", "{}]"),
    "nulls": repeated("null,", "[", "null]"),
    "keys": _numbered(lambda number: f'"k{number}":1,', "{", '"k":1}'),
    "equal keys": repeated('"k":1,', "{", '"k":1}'),
}


@dataclass(frozen=True, slots=True)
class Growth:
    """CPU seconds at n, 2n and 4n, and the longest block of the event loop in seconds."""

    costs_s: tuple[float, float, float]
    blocked_s: float = 0.0

    @property
    def exponent(self) -> float:
        """Of the size; 0 where the cost is too small to tell."""
        return growth_exponent(self.costs_s)

    @property
    def is_wrong(self) -> bool:
        """Whether the cost grows faster than the size, or the event loop was held up."""
        return self.exponent > MAX_EXPONENT or self.blocked_s > MAX_BLOCKED_S

    def is_settled(self, num_repeats: int) -> bool:
        """Whether to believe these figures after so many repeats."""
        is_blocked = self.blocked_s > MAX_BLOCKED_S and num_repeats >= _MAX_REPEATS_OF_BLOCKS
        return not self.is_wrong or is_blocked or num_repeats >= _MAX_REPEATS

    def cheapest(self, other: "Growth") -> "Growth":
        """The lower of each figure: what another process took meanwhile is no cost."""
        first, second, third = (
            min(mine, its) for mine, its in zip(self.costs_s, other.costs_s, strict=True)
        )
        return Growth((first, second, third), min(self.blocked_s, other.blocked_s))


def growth_exponent(costs_s: tuple[float, float, float]) -> float:
    """The power of the size with which these costs grow, from n to 4n; 0 for small ones."""
    first_s, _, third_s = costs_s
    if third_s < MIN_COST_S:
        return 0.0
    return math.log2(third_s / max(first_s, 1e-9)) / 2


@contextmanager
def collector_of_a_server() -> Iterator[None]:
    """The garbage collector as the API sets it: what was there before costs an input nothing."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def reader_growth(read: Callable[[T], object], family: Callable[[int], T], size: int) -> Growth:
    """Figures of a reader of texts or files of `size`, twice and four times as many bytes."""
    with collector_of_a_server():
        found, num_repeats = _growth_once(read, family, size), 0
        while not found.is_settled(num_repeats):
            found = found.cheapest(_growth_once(read, family, size))
            num_repeats += 1
    return found


def _growth_once(read: Callable[[T], object], family: Callable[[int], T], size: int) -> Growth:
    def cost_s(text: T) -> float:
        began_s = time.process_time()
        read(text)
        return time.process_time() - began_s

    third_s = cost_s(family(4 * size))
    if third_s < MIN_COST_S:
        return Growth((third_s / 4, third_s / 2, third_s))
    return Growth((cost_s(family(size)), cost_s(family(2 * size)), third_s))
