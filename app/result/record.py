"""Records: what a result consists of, typed, and as objects, lists and plain values."""

from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = Any  # what a cause has for evidence is its detector's own


class Record(msgspec.Struct, frozen=True):
    """A part of a result; its fields say with which names, types and units."""

    def as_json(self) -> dict[str, Json]:
        """As objects, lists and plain values."""
        found: dict[str, Json] = _with_lists(msgspec.to_builtins(self))
        return found


def _with_lists(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _with_lists(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_lists(part) for part in value]
    return value
