"""Records: what a result consists of, typed, and as objects, lists and plain values."""

from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = Any  # what a cause has for evidence is its detector's own


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a result; its fields say with which names, types and units.

    A field with a default is left out of JSON where it has that: what is absent is absent.
    """

    def as_json(self) -> dict[str, Json]:
        """As objects, lists and plain values: what a reader of the JSON gets."""
        plain: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(self))
        return plain
