"""Bodies of JSON, and what is wrong with those that cannot be read."""

import json
from typing import Any

from app.errors import BadRequest, UnsupportedMedia

JSON_TYPE = "application/json"


def read(body: bytes, content_type: str) -> Any:
    """The value in a body.

    Raises:
        UnsupportedMedia: it says to be something else.
        BadRequest: it cannot be read.
    """
    if content_type.partition(";")[0].strip().lower() != JSON_TYPE:
        raise UnsupportedMedia(f"send {JSON_TYPE}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error) from error


def unreadable(cause: BaseException | None) -> BadRequest:
    """The refusal of a body for which the parser raised this."""
    match cause:
        case json.JSONDecodeError():
            return unreadable_at(cause.pos, cause.msg)
        case RecursionError():
            reason = "brackets are nested too deeply: no request needs more than ten levels"
        case UnicodeDecodeError():
            reason = "some bytes are no text: send UTF-8"
        case ValueError():
            reason = "an integer has thousands of digits: no request needs more than twenty"
        case _:
            reason = "check it with another parser"
    return BadRequest(f"{_NO_JSON}: {reason}")


def unreadable_at(position: int | str, reason: str) -> BadRequest:
    """The refusal of a body that breaks the grammar there, in characters from its beginning."""
    return BadRequest(f"{_NO_JSON}: character {position}: {reason}")


_NO_JSON = "the body is no JSON that can be read"
