"""One kind of rows that get old: how they are found, and how they are removed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of rows that get old.

    `old` asks for the keys of a project's rows from before a moment (Unix seconds), of large ones
    with their `size_bytes`; `remove` takes what it has found.
    """

    name: str
    old: Callable[[str, float], Select[Any]]
    remove: Callable[[Connection, Sequence[Row[Any]]], None]
    is_raw: bool = False
