"""YAML as values that know their lines; ambiguous syntax is refused, all errors at once.

Anchors, tags, duplicate keys and a second document are errors: nothing is made into an object.
"""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from app.yaml_events import YamlRefused, yaml_events

MAX_DEPTH = 8
# What is nested more deeply than this is not even read past: parsers take time with its square.
_MAX_SKIPPED_DEPTH = 32
_NULLS = {"", "~", "null", "Null", "NULL"}

Problems: TypeAlias = list[tuple[int | None, str]]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text as it is written; `is_plain` where it is not in quotes."""

    line: int
    text: str
    is_plain: bool

    @property
    def is_null(self) -> bool:
        """Whether it says that there is none."""
        return self.is_plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: "list[Node]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping: key to line number and value."""

    line: int
    entries: "dict[str, tuple[int, Node]]" = field(default_factory=dict)


Node: TypeAlias = Scalar | Items | Entries


@dataclass(frozen=True, slots=True)
class Document:
    """The node of a text, None where there is none; `is_whole` unless the rest cannot be read."""

    top: Node | None
    is_whole: bool = True


class _Unreadable(Exception):
    """Nothing that follows can be read; `node` is what was begun, with what was whole in it."""

    def __init__(self, node: Node | None = None) -> None:
        super().__init__()
        self.node = node


def read_yaml(text: str, problems: Problems) -> Document:
    """The only document of a text, as far as it can be read.

    What is wrong with it is added to `problems`: lines, from 1, and words.
    """
    return _Reader(text, problems).document()


class _Reader:
    """Nodes from the parser's events; nothing in the text is ever made into an object."""

    def __init__(self, text: str, problems: Problems) -> None:
        self._text = text
        self._events: Iterator[Any] = yaml_events(text, max_depth=_MAX_SKIPPED_DEPTH)
        self._problems = problems

    def document(self) -> Document:
        """The first one; there must be no other."""
        found: Node | None = None
        try:
            while not isinstance(event := self._next(), yaml.StreamEndEvent):
                if isinstance(event, yaml.DocumentStartEvent):
                    if found is not None:
                        self._refuse(event, "a second document: rules are one")
                        break
                    found = self._node(self._next(), 0)
        except _Unreadable as broken:
            return Document(found or broken.node, is_whole=False)
        return Document(found)

    def _next(self) -> Any:
        try:
            return next(self._events)
        except YamlRefused as error:
            self._problems.append((error.line, error.words))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = None if mark is None else mark.line + 1
            self._problems.append((line, f"this is no YAML: {error.problem or error.context}"))
        except (yaml.YAMLError, UnicodeEncodeError) as error:
            at = getattr(error, "position", getattr(error, "start", 0))
            line = self._text.count("\n", 0, at) + 1
            self._problems.append((line, "a character that YAML does not allow"))
        raise _Unreadable

    def _node(self, event: Any, depth: int) -> Node:
        line = event.start_mark.line + 1
        if not self._is_taken(event, depth):
            self._skip(event)
            return Scalar(line, "", is_plain=True)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(line, depth)
        if isinstance(event, yaml.MappingStartEvent):
            return self._entries(line, depth)
        return Scalar(line, event.value, event.style is None or event.style == "")

    def _is_taken(self, event: Any, depth: int) -> bool:
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, f"*{event.anchor} refers to an anchor: write it out")
            return False
        if event.anchor is not None:
            self._refuse(event, f"the anchor &{event.anchor}: write out what is to be used again")
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag}: values have none")
        if depth > MAX_DEPTH:
            self._refuse(event, "this is nested too deeply")
        return depth <= MAX_DEPTH

    def _skip(self, event: Any) -> None:
        """Read to the end of what has begun with this event, and keep nothing of it."""
        depth = int(isinstance(event, yaml.CollectionStartEvent))
        while depth:
            event = self._next()
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)

    def _items(self, line: int, depth: int) -> Items:
        found = Items(line)
        try:
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                found.items.append(self._node(event, depth + 1))
        except _Unreadable:
            raise _Unreadable(found) from None
        return found

    def _entries(self, line: int, depth: int) -> Entries:
        found = Entries(line)
        try:
            while not isinstance(event := self._next(), yaml.MappingEndEvent):
                key = self._node(event, depth + 1)
                self._put(found, key, self._value(found, key, depth))
        except _Unreadable:
            raise _Unreadable(found) from None
        return found

    def _value(self, found: Entries, key: Node, depth: int) -> Node:
        try:
            return self._node(self._next(), depth + 1)
        except _Unreadable as broken:
            # The rules before the one that cannot be read are whole: they are checked, too.
            if isinstance(broken.node, Items):
                self._put(found, key, broken.node)
            raise

    def _put(self, found: Entries, key: Node, value: Node) -> None:
        if not isinstance(key, Scalar):
            self._problems.append((key.line, "a key that is no text"))
        elif key.text in found.entries:
            self._problems.append((key.line, f"{key.text!r} stands here a second time"))
        else:
            found.entries[key.text] = (key.line, value)

    def _refuse(self, event: Any, words: str) -> None:
        self._problems.append((event.start_mark.line + 1, words))


MAX_SECONDS = 30 * 86_400.0
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_BOOLEANS = {"true", "false", "yes", "no", "on", "off"}


@dataclass(frozen=True, slots=True)
class ValueReader:
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
        """A number of seconds within bounds."""
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
        self.refuse(node, f"{key}: no {shortened(text)}: there are {', '.join(known)}")
        return None

    def refuse(self, node: Node, words: str) -> None:
        """Something is wrong with this value."""
        self.problems.append((node.line, words))


def shortened(text: str) -> str:
    """A text as it is quoted in an error."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
