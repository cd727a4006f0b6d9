"""Rules as YAML: read with every error at once, each with its line, and written again."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from app.alerts.rule import Rule
from app.alerts.rule_checks import complaints, twice
from app.alerts.rule_fields import Fields
from app.alerts.yaml_nodes import Document, Entries, Items, Node, Problems, Scalar, read
from app.errors import InvalidRules

MAX_RULES = 200
MAX_BYTES = 256 << 10
MOST_TOLD = 100  # of what is wrong: more is a file of another kind


def parse(text: str, source: str = "rules") -> list[Rule]:
    """The rules that a text says; `source` is what it is called in errors.

    Raises:
        InvalidRules: something is wrong; it has the lines of all of it.
    """
    problems: Problems = []
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        raise InvalidRules(source, [(None, f"{size:,} bytes: at most {MAX_BYTES:,}")])
    rules = _rules(read(text, problems), problems)
    if problems:
        raise InvalidRules(source, _told(problems))
    return rules


def dump(rules: Sequence[Rule]) -> str:
    """The rules as `parse` reads them, with all that is not left open."""
    if not rules:
        return "rules: []\n"
    return "rules:\n" + "".join(_dumped(rule) for rule in rules)


def _told(problems: Problems) -> Problems:
    in_order = sorted(problems, key=lambda each: each[0] or 0)
    more = len(in_order) - MOST_TOLD
    return in_order[:MOST_TOLD] + ([(None, f"and {more:,} more")] if more > 0 else [])


def _rules(found: Document, problems: Problems) -> list[Rule]:
    top = found.top
    if not found.is_whole and not (isinstance(top, Entries) and "rules" in top.entries):
        return []
    if not isinstance(top, Entries) or set(top.entries) != {"rules"}:
        line = 1 if top is None else top.line
        problems.append((line, "want one key, rules, with a list of them"))
        return []
    _, listed = top.entries["rules"]
    if not isinstance(listed, Items):
        # A file that was cut off must not end all watching.
        problems.append((listed.line, "rules: want a list; [] if nothing is to be watched"))
        return []
    if len(listed.items) > MAX_RULES:
        problems.append((listed.line, f"{len(listed.items)} rules: at most {MAX_RULES}"))
        return []
    return _checked(listed.items, problems, is_whole=found.is_whole)


def _checked(items: Sequence[Node], problems: Problems, *, is_whole: bool) -> list[Rule]:
    made = [
        (item, Rule(**values))
        for item in items
        if isinstance(item, Entries) and (values := _values(item, problems)) is not None
    ]
    problems += [
        (item.line, "want a rule: name, on and more")
        for item in items
        if not isinstance(item, Entries)
    ]
    # Of a list that breaks off nobody knows how the others are called.
    names = {rule.name for _, rule in made} if is_whole else None
    for item, rule in made:
        for key, words in complaints(rule, item.entries.keys(), names):
            problems.append((_line(item, key), words))
    for at in twice([rule for _, rule in made]):
        item, rule = made[at]
        problems.append((_line(item, "name"), f"name: another rule is called {rule.name!r}"))
    return [rule for _, rule in made]


def _values(item: Entries, problems: Problems) -> dict[str, Any] | None:
    """Arguments of a rule; None where one that it cannot be without is missing or wrong."""
    values = Fields(problems).values(item)
    missing = [key for key in ("name", "on") if _is_missing(item, key)]
    problems += [(item.line, f"a rule without {key}") for key in missing]
    return values if {"name", "on"} <= values.keys() else None


def _is_missing(item: Entries, key: str) -> bool:
    _, node = item.entries.get(key, (0, None))
    return node is None or (isinstance(node, Scalar) and node.is_null)


def _line(item: Entries, key: str) -> int:
    return item.entries[key][0] if key in item.entries else item.line


def _dumped(rule: Rule) -> str:
    first, *others = _lines(rule)
    return "".join([f"  - {first}\n", *(f"    {line}\n" for line in others)])


def _lines(rule: Rule) -> Iterator[str]:
    yield f"name: {_quoted(rule.name)}"
    yield f"on: {rule.on}"
    for key in ("jobs", "of"):
        if getattr(rule, key) != "*":
            yield f"{key}: {_quoted(getattr(rule, key))}"
    for key in ("above", "clear"):
        if (value := getattr(rule, key)) is not None:
            yield f"{key}: {_number(value)}"
    yield f"for: {{windows: {rule.for_windows}, seconds: {_number(rule.for_s)}}}"
    yield f"keep_firing: {_number(rule.keep_firing_s)}"
    yield f"min_confidence: {_number(rule.min_confidence)}"
    yield f"severity: {rule.severity}"
    if rule.labels:
        inner = ", ".join(f"{key}: {_quoted(text)}" for key, text in rule.labels.items())
        yield f"labels: {{{inner}}}"
    if rule.runbook_url is not None:
        yield f"runbook: {_quoted(rule.runbook_url)}"
    if rule.inhibits:
        yield f"inhibits: [{', '.join(map(_quoted, rule.inhibits))}]"
    if rule.cordon is not None:
        yield f"cordon: {_quoted(rule.cordon)}"


def _quoted(text: str) -> str:
    """As it is where it means itself everywhere, else in quotes: JSON's are YAML's, too."""
    is_safe = text.isascii() and text.replace("-", "").isalpha() and text[0].isalpha()
    return text if is_safe and text.lower() not in _WORDS else json.dumps(text, ensure_ascii=False)


_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def _number(value: float) -> str:
    return f"{value:.12g}"
