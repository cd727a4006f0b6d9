"""Column types that hold the same values on SQLite and PostgreSQL."""

import json
import math
import zlib
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Dialect, Double, Integer, LargeBinary, String, Text
from sqlalchemy.types import TypeDecorator, TypeEngine
from typing_extensions import override

# Fast: a window is packed anew with every revision.
_ZLIB_LEVEL = 1


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
        return None if value is None else _dumps(value)

    @override
    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(value)


class PackedJson(TypeDecorator[Any]):
    """A large JSON value, compressed."""

    impl = LargeBinary
    cache_ok = True

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        return None if value is None else zlib.compress(_dumps(value).encode(), _ZLIB_LEVEL)

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(zlib.decompress(value))


class PackedBytes(TypeDecorator[bytes]):
    """Many bytes, compressed."""

    impl = LargeBinary
    cache_ok = True

    @override
    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return None if value is None else zlib.compress(value, _ZLIB_LEVEL)

    @override
    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return None if value is None else zlib.decompress(value)


def key_text(length: int) -> TypeEngine[str]:
    """Text in the order of its bytes, whatever the language of the database."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def serial() -> TypeEngine[int]:
    """A 64-bit number that the database hands out (SQLite does so for INTEGER only)."""
    return BigInteger().with_variant(Integer(), "sqlite")


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def is_bytes(column_type: TypeEngine[Any]) -> bool:
    """Whether values of this type are bytes in Python."""
    return isinstance(column_type, LargeBinary | PackedBytes)
