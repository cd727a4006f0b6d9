"""Alert rules as YAML: parsed with all errors at once, each with its line, and written again.

The text is read into plain values with the line of each; ambiguous syntax is refused: anchors,
tags, duplicate keys and a second document. `RuleIn` then says which values make no rule.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.alerts.rule import Rule
from app.alerts.rules.rule_in import (
    LABEL_NAME_WANTED,
    MAX_RULES,
    UNUSABLE,
    WANTED,
    ForIn,
    RuleIn,
    rule_problems,
)
from app.errors import InvalidRules, StartUpFailed
from app.yaml_events import YamlRefused, yaml_events

MAX_DEPTH = 8
# What is nested more deeply than this is not even read past: parsers take time with its square.
_MAX_SKIPPED_DEPTH = 32
# Of one mapping: each wrong one is an error of the model, and none of them is counted before.
_MAX_KEYS = 1_000
_NULLS = {"", "~", "null", "Null", "NULL"}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_MAX_INT = 2**53
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

# Keys of mappings, and indexes of lists, from the outside in.
Place: TypeAlias = tuple[str | int, ...]


class _Unreadable(Exception):
    """Nothing that follows can be read."""


class YamlReader:
    """Plain values of a text, which is never made into objects.

    By place, `lines` has the line of each value or its key, from 1, and `written` how each scalar
    is written. `problems` are lines, None of the whole text, and words. After an error of syntax
    not `is_whole`: what was read until then is there, but for what has begun inside the list of
    rules.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {}
        self.written: dict[Place, str] = {}
        self.problems: list[tuple[int | None, str]] = []
        self.is_whole = True
        self._text = text
        self._events: Iterator[Any] = yaml_events(text, max_depth=_MAX_SKIPPED_DEPTH)
        self._lists: dict[Place, list[Any]] = {}  # begun, perhaps not ended

    def document(self) -> Any:
        """The value of the only document; None where there is none."""
        documents: list[Any] = []
        try:
            while not isinstance(event := self._next(), yaml.StreamEndEvent):
                if isinstance(event, yaml.DocumentStartEvent):
                    if documents:
                        self._refuse(event, "a second document: rules are one")
                        break
                    documents.append(self._value(self._next(), ()))
        except _Unreadable:
            self.is_whole = False
            rules = self._lists.get(("rules",))
            return None if rules is None else {"rules": rules}
        return documents[0] if documents else None

    def add_problem(self, place: Place, words: str) -> None:
        """Add a problem at the line of this place, or of what is around it."""
        while place and place not in self.lines:
            place = place[:-1]
        self.problems.append((self.lines.get(place, 1), words))

    def _next(self) -> Any:
        try:
            return next(self._events)
        except YamlRefused as error:
            self.problems.append((error.line, error.words))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = None if mark is None else mark.line + 1
            self.problems.append((line, f"this is no YAML: {error.problem or error.context}"))
        except (yaml.YAMLError, UnicodeEncodeError) as error:
            at = getattr(error, "position", getattr(error, "start", 0))
            line = self._text.count("\n", 0, at) + 1
            self.problems.append((line, "a character that YAML does not allow"))
        raise _Unreadable

    def _value(self, event: Any, place: Place) -> Any:
        """The value that begins with this event; None in the place of one that is refused."""
        self.lines.setdefault(place, event.start_mark.line + 1)
        if not self._is_taken(event, len(place)):
            self._skip(event)
            return None
        if isinstance(event, yaml.SequenceStartEvent):
            items = self._lists[place] = []
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                items.append(self._value(event, (*place, len(items))))
            return items
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(place)
        self.written[place] = event.value
        return event.value if event.style else _plain_value(event.value)

    def _mapping(self, place: Place) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if len(mapping) == _MAX_KEYS:
                self._refuse(event, f"more than {_MAX_KEYS:,} keys")
                raise _Unreadable
            is_text = self._is_taken(event, 0) and isinstance(event, yaml.ScalarEvent)
            if is_text and event.value not in mapping:
                self.lines[(*place, event.value)] = event.start_mark.line + 1
                mapping[event.value] = self._value(self._next(), (*place, event.value))
                continue
            if is_text:
                self._refuse(event, f"{event.value!r} stands here a second time")
            elif isinstance(event, yaml.CollectionStartEvent):
                self._refuse(event, "a key that is no text")
            self._skip(event)
            self._skip(self._next())
        return mapping

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

    def _refuse(self, event: Any, words: str) -> None:
        self.problems.append((event.start_mark.line + 1, words))


def _plain_value(text: str) -> str | float | bool | None:
    """The value of a scalar without quotes."""
    if text in _NULLS:
        return None
    if _NUMBER.fullmatch(text):
        number = float(text)
        return int(number) if number.is_integer() and abs(number) < _MAX_INT else number
    return _BOOLEANS.get(text.lower(), text)


MAX_RULES_BYTES = 256 << 10  # of a file; the API takes half of it
MAX_PROBLEMS = 100  # of what is wrong: more is a file of another kind


def read_rules(path: Path) -> list[Rule]:
    """The rules in a YAML file.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        InvalidRules: as `parse_rules` does.
    """
    with path.open("rb") as file:
        text = file.read(MAX_RULES_BYTES + 1).decode()
    return parse_rules(text, source=str(path))


def rules_of_file(path: Path) -> list[Rule]:
    """The rules in the operator's file.

    Raises:
        StartUpFailed: it cannot be read, or has rules that cannot be; the message has all lines.
    """
    try:
        return read_rules(path)
    except (OSError, UnicodeDecodeError) as error:
        raise StartUpFailed(f"the rules in {path} cannot be read: {error}") from error
    except InvalidRules as error:
        raise StartUpFailed(str(error)) from error


def parse_rules(text: str, source: str = "rules") -> list[Rule]:
    """The rules in a text; `source` is its name in errors.

    Raises:
        InvalidRules: something is wrong; it has the lines of all of it.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_RULES_BYTES:
        raise InvalidRules(source, [(None, f"{size:,} bytes: at most {MAX_RULES_BYTES:,}")])
    reader = YamlReader(text)
    rules = _rules(reader.document(), reader)
    if reader.problems:
        in_order = sorted(reader.problems, key=lambda problem: problem[0] or 0)
        num_more = len(in_order) - MAX_PROBLEMS
        more = [(None, f"and {num_more:,} more")] if num_more > 0 else []
        raise InvalidRules(source, [*in_order[:MAX_PROBLEMS], *more])
    return rules


def _rules(document: Any, reader: YamlReader) -> list[Rule]:
    """The rules of a document; what is wrong with them is added to the reader's problems."""
    if document is None and not reader.is_whole:
        return []
    if not isinstance(document, dict) or set(document) != {"rules"}:
        reader.add_problem((), "want one key, rules, with a list of them")
        return []
    items = document["rules"]
    if not isinstance(items, list):
        # A file that was cut off must not end all watching.
        reader.add_problem(("rules",), "rules: want a list; [] if nothing is to be watched")
        return []
    if len(items) > MAX_RULES:
        reader.add_problem(("rules",), f"{len(items)} rules: at most {MAX_RULES}")
        return []
    name_at = {
        at: item["name"]
        for at, item in enumerate(items)
        if isinstance(item, dict) and isinstance(item.get("name"), str)
    }
    # The names of rules after an error of syntax are unknown.
    names = set(name_at.values()) if reader.is_whole else None
    read = (_rule(item, ("rules", at), names, reader) for at, item in enumerate(items))
    rules = [rule for rule in read if rule is not None]
    firsts = {name: at for at, name in reversed(name_at.items())}
    for at, name in name_at.items():
        if firsts[name] != at:
            reader.add_problem(("rules", at, "name"), f"name: another rule is called {name!r}")
    return rules


def _rule(item: Any, place: Place, names: set[str] | None, reader: YamlReader) -> Rule | None:
    """The rule of an item of the list, if it is one."""
    if not isinstance(item, dict):
        reader.add_problem(place, "want a rule: name, on and more")
        return None
    try:
        fields = {
            key: value for key, value in item.items() if value is not None or key not in _KEYS
        }
        if isinstance(labels := fields.get("labels"), dict):
            fields["labels"] = {name: "" if text is None else text for name, text in labels.items()}
        given = RuleIn.model_validate(fields)
    except ValidationError as refused:
        for error in refused.errors(include_url=False):
            reader.add_problem(*_problem(error, place, reader))
        return None
    rule = given.rule()
    for key, words in rule_problems(rule, given.model_fields_set, names):
        reader.add_problem((*place, key), words)
    return rule


def _problem(error: ErrorDetails, of_rule: Place, reader: YamlReader) -> tuple[Place, str]:
    """Place and words of a value that the model refuses."""
    is_key = error["loc"][-1] == "[key]"
    inner = error["loc"][:-1] if is_key else error["loc"]
    place = (*of_rule, *inner)
    key = ".".join(map(str, inner))
    if error["type"] == "missing":
        return place, f"a rule without {key}"
    if error["type"] == "extra_forbidden":
        *outer, name = inner
        known = ForIn.model_fields if outer else _KEYS
        where = f"{outer[0]}: " if outer else ""
        return place, f"{where}no key {_shortened(str(name))}: there are {', '.join(known)}"
    top = str(inner[0])
    if is_key:
        key, given, wanted = top, str(inner[-1]), LABEL_NAME_WANTED
    else:
        given = reader.written.get(place, "")
        wanted = WANTED[key if key in WANTED else f"{top}.*"]
    if error["type"] == UNUSABLE:
        return place, f"{key}: {error['msg']}"
    if error["type"] == "too_long":
        return place, f"{key}: too many: want at most {error['ctx']['max_length']}"
    words = f"{key}: {_shortened(given)}: want {wanted}" if given else f"{key}: want {wanted}"
    is_unquoted = error["type"] == "string_type" and isinstance(error["input"], bool | float | int)
    return place, f'{words}: write "{given}" with quotes' if is_unquoted else words


_KEYS = tuple(field.alias or name for name, field in RuleIn.model_fields.items())


def _shortened(text: str) -> str:
    """A text as it is quoted in an error."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def dump_rules(rules: Sequence[Rule]) -> str:
    """The rules as `parse_rules` reads them, with all that is not left open."""
    if not rules:
        return "rules: []\n"
    return "rules:\n" + "".join(map(_rule_yaml, rules))


def _rule_yaml(rule: Rule) -> str:
    fields = RuleIn.of_rule(rule).model_dump(by_alias=True, warnings=False)
    lines = [f"{key}: {_yaml(value)}\n" for key, value in fields.items() if value not in _LEFT_OUT]
    return "  - " + "    ".join(lines)


_LEFT_OUT: tuple[Any, ...] = (None, "*", {}, [])


def _yaml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_yaml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return _quoted(value) if isinstance(value, str) else f"{value:.12g}"


def _quoted(text: str) -> str:
    """As it is where it means itself everywhere, else in quotes: JSON's are YAML's, too."""
    is_word = text.isascii() and text.replace("-", "").isalpha() and text[0].isalpha()
    is_plain = is_word and text.lower() not in (*_BOOLEANS, "null", "y", "n")
    return text if is_plain else json.dumps(text, ensure_ascii=False)
