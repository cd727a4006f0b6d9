"""Values of JSON from outside: what they have to be, said in one line where they are not."""

import json
import math
from collections.abc import Mapping
from typing import Any

from app.trace.readers.score_text import Line, Text, broken
from app.trace.scores import MAX_RANK

MAX_MEASURE = 1e15  # of no unit of ours is there as much; sums stay finite


def json_object(text: Text, line: Line, most_bytes: int) -> dict[str, Any]:
    """The object in a line; NaN and Infinity, which Python writes, are read, too.

    Raises:
        InvalidTrace: it is too long, no JSON, or no object.
    """
    if not line.is_whole:
        raise broken(text, line, f"longer than {most_bytes:,} bytes: write one report a line")
    try:
        found = json.loads(line.text)
    except RecursionError:
        raise broken(text, line, "brackets are nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"character {error.pos}: {error.msg}"
        raise broken(text, line, f"no JSON: {where}: write one object a line") from None
    except ValueError:
        raise broken(text, line, "no JSON in UTF-8: write one object a line") from None
    if not isinstance(found, dict):
        raise broken(text, line, f"want an object, not {kind_of(found)}")
    return found


def kind_of(value: object) -> str:
    """What JSON calls a value of this kind."""
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    more = {list: "a list", dict: "an object", type(None): "null"}
    return (kinds | more)[type(value)]


def mapping(text: Text, line: Line, field: str, value: object) -> Mapping[str, Any]:
    """The object in a field; none for null.

    Raises:
        InvalidTrace: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise broken(text, line, f"{field}: want an object, not {kind_of(value)}")
    return value


def rank(text: Text, line: Line, field: str, value: object) -> int:
    """The rank that a number, or a key of an object, stands for.

    Raises:
        InvalidTrace: it is none.
    """
    found = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        found = int(value)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_RANK:
        raise broken(text, line, f"{field}: {value!r:.40} is no rank: want a number from 0 on")
    return found


def number(text: Text, line: Line, field: str, value: object) -> float | None:
    """A number from 0 on; None for null and for NaN, which means that it is not known.

    Raises:
        InvalidTrace: it is none.
    """
    if type(value) is float and 0 <= value <= MAX_MEASURE:  # nearly all of them
        return value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise broken(text, line, f"{field}: want a number, not {kind_of(value)}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isnan(found):
        return None
    if not 0 <= found <= MAX_MEASURE:
        raise broken(text, line, f"{field}: {found:g} is no measure: want a number from 0 on")
    return found
