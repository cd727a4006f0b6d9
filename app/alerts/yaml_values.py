"""Single values of a YAML file as what they are to be; those that cannot be, with their lines."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from app.alerts.yaml_nodes import Node, Problems, Scalar

MAX_SECONDS = 30 * 86_400.0
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_BOOLEANS = {"true", "false", "yes", "no", "on", "off"}


@dataclass(frozen=True, slots=True)
class Values:
    """Reads values; whatever cannot be is added to `problems`, and None in its place."""

    problems: Problems

    def number(self, key: str, node: Node) -> float | None:
        """A finite number, 0 or more."""
        if not isinstance(node, Scalar) or not node.is_plain or not _NUMBER.fullmatch(node.text):
            self.refuse(node, f"{key}: want a number, such as 1.1")
            return None
        value = float(node.text)
        if not math.isfinite(value) or value < 0:
            self.refuse(node, f"{key}: want a number of 0 or more")
            return None
        return value

    def seconds(self, key: str, node: Node) -> float | None:
        """A time that somebody may want to wait."""
        value = self.number(key, node)
        if value is None or value <= MAX_SECONDS:
            return value
        self.refuse(node, f"{key}: at most {MAX_SECONDS:.0f} seconds, which are 30 days")
        return None

    def share(self, key: str, node: Node) -> float | None:
        """0 to 1."""
        value = self.number(key, node)
        if value is None or value <= 1:
            return value
        self.refuse(node, f"{key}: want 0 to 1")
        return None

    def text(self, key: str, node: Node) -> str | None:
        """A printable text; a number, or a word that YAML takes for something else, has quotes."""
        if not isinstance(node, Scalar):
            self.refuse(node, f"{key}: want a text")
            return None
        if node.is_plain and (_NUMBER.fullmatch(node.text) or node.text.lower() in _BOOLEANS):
            self.refuse(node, f'{key}: want a text: write "{node.text}" with quotes')
            return None
        if not node.text.isprintable():
            self.refuse(node, f"{key}: a character that cannot be printed")
            return None
        return node.text

    def one_of(self, key: str, node: Node, known: Collection[str]) -> str | None:
        """One of these words."""
        text = self.text(key, node)
        if text is None or text in known:
            return text
        self.refuse(node, f"{key}: no {short(text)}: there are {', '.join(known)}")
        return None

    def refuse(self, node: Node, words: str) -> None:
        """Something is wrong with this value."""
        self.problems.append((node.line, words))


def short(text: str) -> str:
    """A text as it is quoted in an error."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
