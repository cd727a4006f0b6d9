"""Text from outside in CSV files, which spreadsheets would obey in place of showing it."""

from typing import TypeVar

from app.cli.files import printable

T = TypeVar("T")

_FORMULA = ("=", "+", "-", "@")


def cell(value: T) -> T | str:
    """The value; a text that begins as a formula does gets an apostrophe, as spreadsheets want it.

    What cannot be seen, or turns the direction of what follows, is written out.
    """
    if not isinstance(value, str):
        return value
    text = "\n".join(map(printable, value.split("\n")))
    return f"'{text}" if text.startswith(_FORMULA) else text
