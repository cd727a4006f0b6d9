"""Which operations are meant by a name in a foreign file?"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from app.trace.readers.foreign import Lack, Options

_MAX_NAMES = 50_000  # remembered; a file of more has numbers in its names
_LONGEST_REMEMBERED = 200
_MAX_COUNTED = 1_000
_MAX_DIGITS = 15
_SHOWN = 5
_LONGEST = 60


class Meant(NamedTuple):
    """Codes of the op types (several where one name stands for several), and numbers in it."""

    codes: tuple[int, ...]
    mb_id: int = -1
    chunk: int = -1
    step: int = -1


class NameMap:
    """Names to op types: the caller's patterns first, then what the format knows.

    `known` maps a name to the names of op types; to none for what is not wanted and no loss.
    """

    def __init__(self, options: Options, known: Mapping[str, tuple[str, ...]]) -> None:
        codes = options.op_types.codes
        self._patterns = [(regex, codes[optype]) for regex, optype in options.patterns]
        self._known = {
            **{name: Meant((code,)) for name, code in codes.items()},
            **{name: Meant(tuple(codes[each] for each in types)) for name, types in known.items()},
        }
        self._found: dict[str, Meant | None] = {}
        self.unknown: Counter[str] = Counter()
        self.num_unknown = 0

    def meant(self, name: str) -> Meant | None:
        """What a name stands for, None for nothing that is known."""
        if name in self._found:
            return self._found[name]
        found = self._matched(name) or self._known.get(name)
        if len(self._found) < _MAX_NAMES and len(name) <= _LONGEST_REMEMBERED:
            self._found[name] = found
        return found

    def count_unknown(self, name: str, times: int = 1) -> None:
        """So many operations of this name are left out."""
        self.num_unknown += times
        shown = name[:_LONGEST]
        if shown in self.unknown or len(self.unknown) < _MAX_COUNTED:
            self.unknown[shown] += times

    def lacks(self, noun: str) -> list[Lack]:
        """What was left out."""
        if not self.num_unknown:
            return []
        named = [f"{count:,} of {name!r}" for name, count in self.unknown.most_common(_SHOWN)]
        more = len(self.unknown) - len(named)
        names = ", ".join(named) + (f" and {more:,} more names" if more > 0 else "")
        return [
            Lack(
                f"op types: {self.num_unknown:,} {noun} have a name that is none, {names}",
                "they are left out, their time counts as waiting; name their types with --map",
            )
        ]

    def _matched(self, name: str) -> Meant | None:
        for regex, code in self._patterns:
            if match := regex.search(name):
                groups = match.groupdict()
                numbers = (_number(groups.get(each)) for each in ("mb", "chunk", "step"))
                return Meant((code,), *numbers)
        return None


def _number(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return -1
    return int(text)
