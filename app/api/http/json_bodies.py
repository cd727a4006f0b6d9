"""JSON bodies of requests: parsing them into a model, and the errors of invalid ones."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic.config import JsonDict, JsonValue

from app.errors import BadRequest, UnsupportedMedia

JSON_TYPE = "application/json"
MAX_FIELDS = 20  # that an answer names as wrong
# A hundred thousand unknown fields are as many errors, made and freed: half a second.
_MAX_KEYS = 1_000
_NOT_JSON = "the body is not valid JSON"

_Model = TypeVar("_Model", bound=BaseModel)


def read_model(model: type[_Model], body: bytes, content_type: str) -> _Model:
    """Parse a JSON body of a caller; in a thread, as a large one takes a tenth of a second.

    Raises:
        UnsupportedMedia: another Content-Type.
        BadRequest: the body is not valid JSON, or has an object of too many fields.
        RequestValidationError: with the first wrong fields.
    """
    given = read_json(body, content_type)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
    # What the caller sent, and its errors, are freed in this thread: they do not go along.
    del given, found[MAX_FIELDS:]
    raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found])


def read_json(body: bytes, content_type: str) -> Any:
    """Parse a JSON body.

    Raises:
        UnsupportedMedia: another Content-Type.
        BadRequest: the body is not valid JSON, or has an object of too many fields.
    """
    if content_type.partition(";")[0].strip().lower() != JSON_TYPE:
        raise UnsupportedMedia(f"send {JSON_TYPE}")
    try:
        return json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise unreadable_json(error) from error


def _object(fields: Sequence[tuple[str, JsonValue]]) -> JsonDict:
    if len(fields) <= _MAX_KEYS:
        return dict(fields)
    num = len(fields)
    del fields  # else the error's traceback keeps them, to be freed by the event loop
    raise BadRequest(f"an object of the body has {num:,} fields: no request needs more than 30")


def unreadable_json(cause: BaseException | None) -> BadRequest:
    """The refusal of a body for this error of the parser."""
    match cause:
        case json.JSONDecodeError():
            return unreadable_json_at(cause.pos, cause.msg)
        case RecursionError():
            reason = "brackets are nested too deeply: no request needs more than ten levels"
        case UnicodeDecodeError():
            reason = "the text is not valid UTF-8"
        case ValueError():
            reason = "an integer has thousands of digits: no request needs more than twenty"
        case _:
            reason = "check it with another parser"
    return BadRequest(f"{_NOT_JSON}: {reason}")


def unreadable_json_at(position: int | str, reason: str) -> BadRequest:
    """The refusal of a body with a syntax error at this character."""
    return BadRequest(f"{_NOT_JSON}: character {position}: {reason}")
