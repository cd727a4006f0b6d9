"""Maps names in foreign files to operation types: the caller's patterns first, then known names."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from app.trace.readers.importing import ImportOptions, MissingData

_MAX_NAMES = 50_000  # remembered; a file of more has numbers in its names
_MAX_CACHED_CHARS = 200
_MAX_COUNTED = 1_000
_MAX_DIGITS = 15
_MAX_SHOWN = 5
_MAX_SHOWN_CHARS = 60


class NameMeaning(NamedTuple):
    """What a name means: codes of its op types (one or more), and numbers in the name."""

    codes: tuple[int, ...]
    mb_id: int = -1
    chunk: int = -1
    step: int = -1


class NameMap:
    """Maps names to op types: the caller's patterns first, then the format's own names.

    `known` maps a name to the names of op types; to none for names that are skipped without loss.
    """

    def __init__(self, options: ImportOptions, known: Mapping[str, tuple[str, ...]]) -> None:
        codes = options.op_types.codes
        self._patterns = [(regex, codes[optype]) for regex, optype in options.patterns]
        self._known = {
            **{name: NameMeaning((code,)) for name, code in codes.items()},
            **{
                name: NameMeaning(tuple(codes[each] for each in types))
                for name, types in known.items()
            },
        }
        self._found: dict[str, NameMeaning | None] = {}
        self.unknown: Counter[str] = Counter()
        self.num_unknown = 0

    def meant(self, name: str) -> NameMeaning | None:
        """Meaning of a name, None if unknown."""
        if name in self._found:
            return self._found[name]
        found = self._matched(name) or self._known.get(name)
        if len(self._found) < _MAX_NAMES and len(name) <= _MAX_CACHED_CHARS:
            self._found[name] = found
        return found

    def count_unknown(self, name: str, times: int = 1) -> None:
        """Count operations of an unknown name."""
        self.num_unknown += times
        shown = name[:_MAX_SHOWN_CHARS]
        if shown in self.unknown or len(self.unknown) < _MAX_COUNTED:
            self.unknown[shown] += times

    def missing(self, noun: str) -> list[MissingData]:
        """The unknown names with their counts."""
        if not self.num_unknown:
            return []
        named = [f"{count:,} of {name!r}" for name, count in self.unknown.most_common(_MAX_SHOWN)]
        more = len(self.unknown) - len(named)
        names = ", ".join(named) + (f" and {more:,} more names" if more > 0 else "")
        return [
            MissingData(
                f"op types: {self.num_unknown:,} {noun} have a name that is none, {names}",
                "they are left out, their time counts as waiting; name their types with --map",
            )
        ]

    def _matched(self, name: str) -> NameMeaning | None:
        for regex, code in self._patterns:
            if match := regex.search(name):
                groups = match.groupdict()
                numbers = (_number(groups.get(each)) for each in ("mb", "chunk", "step"))
                return NameMeaning((code,), *numbers)
        return None


def _number(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return -1
    return int(text)
