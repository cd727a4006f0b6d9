"""Column types that hold the same values on SQLite and PostgreSQL."""

import math
import zlib
from typing import Any

import msgspec
import zstandard
from sqlalchemy import BigInteger, Dialect, Double, Integer, LargeBinary, String, Text
from sqlalchemy.types import TypeDecorator, TypeEngine
from typing_extensions import override

# Of the fast levels the smallest, too, on results: nearly random digits.
_ZSTD_LEVEL = 1
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


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
    """A small JSON value as readable text."""

    impl = Text
    cache_ok = True

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else _dumps(value).decode()

    @override
    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(value)


class PackedJson(TypeDecorator[Any]):
    """A large JSON value, compressed."""

    impl = LargeBinary
    cache_ok = True

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        return None if value is None else _packed(_dumps(value))

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(_unpacked(value))


class PackedBytes(TypeDecorator[bytes]):
    """Many bytes, compressed."""

    impl = LargeBinary
    cache_ok = True

    @override
    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return None if value is None else _packed(value)

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return None if value is None else _unpacked(value)


def key_text(length: int) -> TypeEngine[str]:
    """Text in the order of its bytes, whatever the language of the database."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def serial() -> TypeEngine[int]:
    """A 64-bit number that the database hands out (SQLite does so for INTEGER only)."""
    return BigInteger().with_variant(Integer(), "sqlite")


def is_bytes(column_type: TypeEngine[Any]) -> bool:
    """Whether values of this type are bytes in Python."""
    return isinstance(column_type, LargeBinary | PackedBytes)


def _packed(value: bytes) -> bytes:
    return zstandard.compress(value, _ZSTD_LEVEL)


def _unpacked(blob: bytes) -> bytes:
    # zlib is what the first releases wrote; it never begins like this.
    if blob.startswith(_ZSTD_MAGIC):
        return zstandard.decompress(blob)
    return zlib.decompress(blob)


def _dumps(value: Any) -> bytes:
    """The value as JSON, 15 times as fast as by the standard library.

    Raises:
        ValueError: a number in it is not finite; it would silently become null.
    """
    _check_finite(value)
    return _ENCODER.encode(value)


def _check_finite(value: Any) -> None:
    if isinstance(value, dict):
        for each in value.values():
            _check_finite(each)
    elif isinstance(value, list | tuple):
        if not _has_finite_sum(value):
            for each in value:
                _check_finite(each)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number: it is not finite")


def _has_finite_sum(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether all are numbers and finite, asked at once; now and then no for ones that are."""
    try:
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):
        return False


def _as_float(value: Any) -> float:
    if isinstance(value, float):  # NumPy's is one, too
        return float(value)
    raise TypeError(f"{type(value)} is nothing that JSON has")


_ENCODER = msgspec.json.Encoder(enc_hook=_as_float)
