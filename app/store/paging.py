"""Pages of a list: the cursor names the last row of one page, so none is missed or seen twice."""

import base64
import binascii
from typing import Annotated, Any, TypeVar

import msgspec

from app.errors import InvalidRequest

# What no database would take is no cursor that we gave out.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
JobId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]+\Z")]

T = TypeVar("T")


def to_cursor(*key: Any) -> str:
    """The opaque text for the row with this key."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def from_cursor(cursor: str, shape: type[T]) -> T:
    """The key in a cursor, checked against its shape (a tuple type).

    Raises:
        InvalidRequest: the text is no cursor of this list.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=shape)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise InvalidRequest("the cursor is not one that this list gave out") from None


def split(rows: list[T], limit: int) -> tuple[list[T], bool]:
    """The page, and whether more follows; ask the database for one row more than the limit."""
    return rows[:limit], len(rows) > limit
