"""Column types that hold the same values on SQLite and PostgreSQL, and texts that both take.

Texts that Paceline writes are clipped; texts that users give are checked.
"""

import math
from typing import Any

import msgspec
import zstandard
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Dialect,
    Double,
    Integer,
    LargeBinary,
    String,
    Text,
    type_coerce,
)
from sqlalchemy.types import TypeDecorator, TypeEngine
from typing_extensions import override

from app.errors import InvalidRequest

# On results (nearly random digits), level 1 is both fast and the smallest.
_ZSTD_LEVEL = 1


class Real(TypeDecorator[float]):
    """A finite number; NaN would silently become NULL on SQLite, so it is refused."""

    impl = Double
    cache_ok = True

    @override
    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        if value is None:
            return None
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        return float(value)


class JsonText(TypeDecorator[Any]):
    """A small JSON value as readable text; read as a `record`, or as plain values."""

    impl = Text
    cache_ok = True

    def __init__(self, record: Any = Any) -> None:
        super().__init__()
        self.record = record

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else _to_json(value).decode()

    @override
    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(value, type=self.record)


class PackedJson(TypeDecorator[Any]):
    """A large JSON value, compressed; read as a `record`, or as plain values."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, record: Any = Any) -> None:
        super().__init__()
        self.record = record

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        return None if value is None else _compress(_to_json(value))

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(unpacked(value), type=self.record)


class PackedBytes(TypeDecorator[bytes]):
    """Many bytes, compressed."""

    impl = LargeBinary
    cache_ok = True

    @override
    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return None if value is None else _compress(value)

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return None if value is None else unpacked(value)


def key_text(length: int) -> TypeEngine[str]:
    """Text in the order of its bytes, whatever the language of the database."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def serial() -> TypeEngine[int]:
    """A 64-bit number that the database hands out (SQLite does so for INTEGER only)."""
    return BigInteger().with_variant(Integer(), "sqlite")


def with_plain_values(column: Column[Any]) -> ColumnElement[Any]:
    """The column, its records read as plain values: also those that no release can read."""
    if not isinstance(column.type, JsonText | PackedJson):
        return column
    return type_coerce(column, type(column.type)()).label(column.name)


def is_bytes(column_type: TypeEngine[Any]) -> bool:
    """Whether values of this type are bytes in Python."""
    return isinstance(column_type, LargeBinary | PackedBytes)


def _compress(value: bytes) -> bytes:
    return zstandard.compress(value, _ZSTD_LEVEL)


def unpacked(blob: bytes) -> bytes:
    """The bytes in a packed column; raises ValueError if they are damaged."""
    try:
        return zstandard.decompress(blob)
    except zstandard.ZstdError as error:
        raise ValueError(f"the stored value is damaged: {error}") from error


def _to_json(value: Any) -> bytes:
    """The value as JSON, 15 times as fast as by the standard library.

    Raises ValueError for a number that is not finite, which would silently become null.
    """
    _check_finite(value)
    return _ENCODER.encode(value)


def _check_finite(value: Any) -> None:
    if isinstance(value, dict):
        for part in value.values():
            _check_finite(part)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _check_finite(getattr(value, name))
    elif isinstance(value, list | tuple):
        if not _has_finite_sum(value):
            for element in value:
                _check_finite(element)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not finite: JSON has no such number")


def _has_finite_sum(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether all are finite numbers, by their sum; may be False for finite ones that overflow."""
    try:
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):
        return False


def _as_float(value: Any) -> float:
    if isinstance(value, float):  # NumPy's is one, too
        return float(value)
    raise TypeError(f"{type(value)} has no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_as_float)


def clipped(text: str, max_chars: int) -> str:
    """The text's first `max_chars` characters, with characters that no database takes replaced.

    For texts that Paceline writes itself.
    """
    short = text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
    return short.replace("\0", "�").encode(errors="replace").decode()


def clipped_or_none(text: str | None, max_chars: int) -> str | None:
    """`clipped`, or None for None."""
    return None if text is None else clipped(text, max_chars)


def checked_text(name: str, text: str, max_chars: int) -> str:
    """The text unchanged; for texts that users give.

    Raises:
        InvalidRequest: it is too long, or has characters that no database takes.
    """
    if len(text) > max_chars:
        raise InvalidRequest(f"{name}: want at most {max_chars:,} characters")
    if clipped(text, max_chars) != text:
        raise InvalidRequest(f"{name} holds a character that cannot be stored")
    return text


def clipped_values(value: Any, max_chars: int) -> Any:
    """A JSON value with every text in it clipped."""
    if isinstance(value, str):
        return clipped(value, max_chars)
    if isinstance(value, dict):
        return {
            clipped(str(key), max_chars): clipped_values(element, max_chars)
            for key, element in value.items()
        }
    if isinstance(value, list | tuple):
        return [clipped_values(element, max_chars) for element in value]
    return value
