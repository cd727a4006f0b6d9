"""Text from outside made harmless for any receiver: one line, nothing invisible, not too long."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
# Kept although they cannot be seen: some scripts, and compound emoji, are wrong without.
_JOINERS = "\u200c\u200d"
# Around a name from outside, these keep its direction inside; harmless as long as they are paired.
_ISOLATE, _END_ISOLATE = "\u2068", "\u2069"
_ISOLATES = re.compile(f"[{_ISOLATE}{_END_ISOLATE}]")
_KEPT = frozenset(_JOINERS + _ISOLATE + _END_ISOLATE)
# What mailboxes and chats make a link of, whatever a format says. A bare name they may link all the
# same: it cannot be told from a host's.
_LINKS = re.compile(
    r"(?i)(?P<scheme>[a-z][a-z0-9+.-]{0,30})://|\b(?P<plain>mailto|tel|data):|\bwww\."
)
# Characters that take a line of their own; of control characters only these separate words.
_BREAKS = frozenset("\t\n\v\f\r\x85\u2028\u2029")


def one_line(text: str, most_chars: int) -> str:
    """The text on one line of at most so many characters.

    Marks that turn the direction of text, and whatever else cannot be seen, are left out: a name
    must not be able to look like another, or like the words around it.
    """
    # A name of a million characters is not looked at as a whole; some of these may fall away.
    looked_at = text[: 4 * most_chars + 16]
    shown = "".join(map(_shown, looked_at)).strip()
    if len(shown) > most_chars or len(looked_at) < len(text):
        shown = shown[: most_chars - 1].rstrip() + ELLIPSIS
    return shown if _is_paired(shown) else _ISOLATES.sub("", shown)


def unlinked(text: str) -> str:
    """The text with every address in it written so that nobody can click on it: https[:]//..."""
    return _LINKS.sub(_written_out, text)


def _written_out(link: re.Match[str]) -> str:
    if link["scheme"]:
        return f"{link['scheme']}[:]//"
    return f"{link['plain']}[:]" if link["plain"] else f"{link[0][:-1]}[.]"


def tidy(value: Any, most_chars: int) -> Any:
    """Plain data with every text in it on one line of at most so many characters."""
    return each_text(value, lambda text: one_line(text, most_chars))


def each_text(value: Any, made: Callable[[str], str]) -> Any:
    """Plain data with every text in it, names included, as it is `made`."""
    if isinstance(value, str):
        return made(value)
    if isinstance(value, Mapping):
        return {each_text(key, made): each_text(each, made) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(each, made) for each in value]
    return value


def _shown(char: str) -> str:
    if char in _BREAKS:
        return " "
    category = unicodedata.category(char)
    if category == "Cs":  # half a character, which no encoding takes
        return "\N{REPLACEMENT CHARACTER}"
    hidden = category in ("Cc", "Cf", "Zl", "Zp") and char not in _KEPT
    return "" if hidden else char


def _is_paired(text: str) -> bool:
    depth = 0
    for mark in _ISOLATES.findall(text):
        depth += 1 if mark == _ISOLATE else -1
        if depth < 0:
            return False
    return depth == 0
