"""Texts that any database takes, and none longer than somebody will read."""

from typing import Any

from app.errors import InvalidRequest


def clipped(text: str, most: int) -> str:
    """The text's first `most` characters, those that no database takes replaced.

    For what we write ourselves: a part of it is better than none.
    """
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return short.replace("\0", "�").encode(errors="replace").decode()


def clipped_or_none(text: str | None, most: int) -> str | None:
    """The same of a text that there may not be."""
    return None if text is None else clipped(text, most)


def checked(name: str, text: str, most: int) -> str:
    """The text as it is, for what somebody has asked us to keep.

    Raises:
        InvalidRequest: it is longer, or has characters that no database takes.
    """
    if len(text) > most:
        raise InvalidRequest(f"{name}: want at most {most:,} characters")
    if clipped(text, most) != text:
        raise InvalidRequest(f"{name} holds a character that is no text")
    return text


def clipped_values(value: Any, most: int) -> Any:
    """A JSON value with every text in it clipped."""
    if isinstance(value, str):
        return clipped(value, most)
    if isinstance(value, dict):
        return {clipped(str(key), most): clipped_values(each, most) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clipped_values(each, most) for each in value]
    return value
