"""Alert rules as YAML: parsed with all errors at once, each with its line, and written again.

Beside the syntax this checks that a threshold can be reached and that named rules exist.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from app.alerts.labels import BUILT_IN_LABELS
from app.alerts.readings.facts import WindowReading
from app.alerts.readings.readings import WINDOW_READINGS
from app.alerts.rule import MAX_RUNBOOK_CHARS, ON, SEVERITIES, Rule
from app.alerts.rules.yaml_reader import (
    Document,
    Entries,
    Items,
    Node,
    Problems,
    Scalar,
    ValueReader,
    read_yaml,
    shortened,
)
from app.errors import InvalidRules
from app.result.causes import CAUSES

# A key of the rule, for its line, and what is wrong.
RuleProblem = tuple[str, str]


def rule_problems(
    rule: Rule, given: Collection[str], names: Collection[str] | None
) -> Iterator[RuleProblem]:
    """What cannot be of one rule, of which these keys are given.

    `names` are all rules', None where not all of them are known.
    """
    figure = WINDOW_READINGS.get(rule.on)
    if figure is None:
        for key in ("above", "clear", "of"):
            if key in given:
                yield key, f"{key}: {rule.on} has no value to compare: remove this key"
    else:
        yield from _threshold_problems(rule, figure)
        yield from _pattern_problems(rule, figure, given)
    for name in rule.inhibits:
        if name == rule.name:
            yield "inhibits", "inhibits: a rule cannot inhibit itself"
        elif names is not None and name not in names:
            yield "inhibits", f"inhibits: no rule is called {name!r}"


def repeated_names(rules: Sequence[Rule]) -> list[int]:
    """Positions of rules whose name an earlier one has."""
    names = [rule.name for rule in rules]
    return [at for at, name in enumerate(names) if name in names[:at]]


def _threshold_problems(rule: Rule, figure: WindowReading) -> Iterator[RuleProblem]:
    above = rule.above
    if above is None:
        if figure.usual_above is None:
            yield "on", f"above: a rule on {rule.on} needs a threshold"
        elif rule.clear is not None:
            yield "clear", "clear: give above, too"
        return
    if above <= figure.rest:
        yield "above", f"above: {above:g} is always reached: want more than {figure.rest:g}"
        return
    if figure.unit == "share" and above >= 1:
        yield "above", f"above: {above:g} is never reached: a share is below 1"
    if rule.clear is not None and not figure.rest < rule.clear <= above:
        yield "clear", f"clear: want more than {figure.rest:g} and at most above, {above:g}"


def _pattern_problems(
    rule: Rule, figure: WindowReading, given: Collection[str]
) -> Iterator[RuleProblem]:
    if "of" in given and not figure.has_subjects:
        yield "of", f"of: {rule.on} has one alert for the whole job: remove this key"
    if rule.on == "cause" and not any(fnmatchcase(cause, rule.of) for cause in CAUSES):
        yield "of", f"of: no cause is like {rule.of!r}: there are {', '.join(CAUSES)}"


RULE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
MAX_LABELS = 16
MAX_PATTERN_CHARS = 128
MAX_WINDOWS = 1000

_LABEL = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_MAX_LABEL_CHARS = 256
_FOR_KEYS = {"windows": "for_windows", "seconds": "for_s"}


class RuleReader(ValueReader):
    """Reads the values of one rule; an invalid one is reported with its line, and left out."""

    def rule(self, item: Entries) -> Rule | None:
        """The rule; None where one key that it cannot be without is missing or wrong."""
        found: dict[str, Any] = {}
        for key, (line, node) in item.entries.items():
            if key not in _KEYS:
                self.problems.append((line, f"no key {key!r}: there are {', '.join(_KEYS)}"))
            elif not (isinstance(node, Scalar) and node.is_null):
                name, read = _KEYS[key]
                value = read(self, key, node)
                found |= value if name is None else {} if value is None else {name: value}
        missing = [key for key in ("name", "on") if _is_missing(item, key)]
        self.problems.extend((item.line, f"a rule without {key}") for key in missing)
        return Rule(**found) if {"name", "on"} <= found.keys() else None

    def name(self, key: str, node: Node) -> str | None:
        """A name of small letters, digits and hyphens."""
        text = self.text(key, node)
        if text is None or RULE_NAME.fullmatch(text):
            return text
        self.refuse(node, f"{key}: {shortened(text)} is not 1 to 64 of a-z, 0-9 and -")
        return None

    def on(self, key: str, node: Node) -> str | None:
        """What the rule is on."""
        return self.one_of(key, node, ON)

    def severity(self, key: str, node: Node) -> str | None:
        """How bad it is."""
        return self.one_of(key, node, SEVERITIES)

    def pattern(self, key: str, node: Node) -> str | None:
        """A pattern with * and ?."""
        text = self.text(key, node)
        if text is None or 0 < len(text) <= MAX_PATTERN_CHARS:
            return text
        self.refuse(node, f"{key}: a pattern has 1 to {MAX_PATTERN_CHARS} characters")
        return None

    def lasts(self, key: str, node: Node) -> dict[str, float]:
        """Windows and seconds that it has to hold."""
        if not isinstance(node, Entries):
            self.refuse(node, f"{key}: want {{windows: 3, seconds: 30}}")
            return {}
        found: dict[str, float] = {}
        for part, (line, inner) in node.entries.items():
            if part not in _FOR_KEYS:
                self.problems.append((line, f"{key}: no key {part!r}: there are windows, seconds"))
            elif (value := self._lasts(f"{key}.{part}", part, inner)) is not None:
                found[_FOR_KEYS[part]] = value
        return found

    def labels(self, key: str, node: Node) -> Mapping[str, str] | None:
        """Texts by name, which every alert of the rule has."""
        if not isinstance(node, Entries):
            self.refuse(node, f"{key}: want names with texts, such as {{team: training}}")
            return None
        if len(node.entries) > MAX_LABELS:
            self.refuse(node, f"{key}: {len(node.entries)}, and a rule has at most {MAX_LABELS}")
        found = {}
        for label, (line, inner) in node.entries.items():
            text = self.text(f"{key}.{label}", inner)
            if not _LABEL.fullmatch(label):
                words = "is not 1 to 64 of a-z, 0-9 and _, with no digit first"
                self.problems.append((line, f"{key}: {shortened(label)} {words}"))
            elif label in BUILT_IN_LABELS:
                self.problems.append((line, f"{key}: {label} is one that alerts have anyway"))
            elif text is not None and len(text) > _MAX_LABEL_CHARS:
                self.refuse(inner, f"{key}.{label}: at most {_MAX_LABEL_CHARS} characters")
            elif text is not None:
                found[label] = text
        return found

    def url(self, key: str, node: Node) -> str | None:
        """An address that a browser opens."""
        text = self.text(key, node)
        if text is None:
            return None
        if len(text) <= MAX_RUNBOOK_CHARS and _is_web(text):
            return text
        limit = f"of at most {MAX_RUNBOOK_CHARS} characters"
        self.refuse(node, f"{key}: want an address, https://..., {limit}")
        return None

    def names(self, key: str, node: Node) -> tuple[str, ...] | None:
        """Names of rules."""
        if not isinstance(node, Items):
            self.refuse(node, f"{key}: want a list of rules, such as [cause]")
            return None
        found = (self.name(key, item) for item in node.items)
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def _lasts(self, key: str, part: str, node: Node) -> float | int | None:
        if part == "seconds":
            return self.seconds(key, node)
        value = self.number(key, node)
        if value is None or (value == int(value) and 1 <= value <= MAX_WINDOWS):
            return None if value is None else int(value)
        self.refuse(node, f"{key}: want 1 to {MAX_WINDOWS}, a whole number")
        return None


_FieldReader = Callable[[RuleReader, str, Node], Any]
# Key in a file, argument of a rule (None: a mapping of several), and how it is read.
_KEYS: Mapping[str, tuple[str | None, _FieldReader]] = {
    "name": ("name", RuleReader.name),
    "on": ("on", RuleReader.on),
    "jobs": ("jobs", RuleReader.pattern),
    "of": ("of", RuleReader.pattern),
    "above": ("above", RuleReader.number),
    "clear": ("clear", RuleReader.number),
    "for": (None, RuleReader.lasts),
    "keep_firing": ("keep_firing_s", RuleReader.seconds),
    "min_confidence": ("min_confidence", RuleReader.share),
    "severity": ("severity", RuleReader.severity),
    "labels": ("labels", RuleReader.labels),
    "runbook": ("runbook_url", RuleReader.url),
    "inhibits": ("inhibits", RuleReader.names),
    "cordon": ("cordon", RuleReader.name),
}


def _is_web(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in text


MAX_RULES = 200
MAX_RULES_BYTES = 256 << 10  # of a file; the API takes half of it
MAX_PROBLEMS = 100  # of what is wrong: more is a file of another kind


def parse_rules(text: str, source: str = "rules") -> list[Rule]:
    """The rules that a text says; `source` is what it is called in errors.

    Raises:
        InvalidRules: something is wrong; it has the lines of all of it.
    """
    problems: Problems = []
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_RULES_BYTES:
        raise InvalidRules(source, [(None, f"{size:,} bytes: at most {MAX_RULES_BYTES:,}")])
    rules = _rules(read_yaml(text, problems), problems)
    if problems:
        raise InvalidRules(source, _first_problems(problems))
    return rules


def dump_rules(rules: Sequence[Rule]) -> str:
    """The rules as `parse_rules` reads them, with all that is not left open."""
    if not rules:
        return "rules: []\n"
    return "rules:\n" + "".join(_rule_yaml(rule) for rule in rules)


def _first_problems(problems: Problems) -> Problems:
    in_order = sorted(problems, key=lambda each: each[0] or 0)
    more = len(in_order) - MAX_PROBLEMS
    return in_order[:MAX_PROBLEMS] + ([(None, f"and {more:,} more")] if more > 0 else [])


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
        (item, rule)
        for item in items
        if isinstance(item, Entries) and (rule := RuleReader(problems).rule(item)) is not None
    ]
    problems += [
        (item.line, "want a rule: name, on and more")
        for item in items
        if not isinstance(item, Entries)
    ]
    # The names of rules after a truncation are unknown.
    names = {rule.name for _, rule in made} if is_whole else None
    for item, rule in made:
        for key, words in rule_problems(rule, item.entries.keys(), names):
            problems.append((_line(item, key), words))
    for at in repeated_names([rule for _, rule in made]):
        item, rule = made[at]
        problems.append((_line(item, "name"), f"name: another rule is called {rule.name!r}"))
    return [rule for _, rule in made]


def _is_missing(item: Entries, key: str) -> bool:
    _, node = item.entries.get(key, (0, None))
    return node is None or (isinstance(node, Scalar) and node.is_null)


def _line(item: Entries, key: str) -> int:
    return item.entries[key][0] if key in item.entries else item.line


def _rule_yaml(rule: Rule) -> str:
    first, *others = _rule_lines(rule)
    return "".join([f"  - {first}\n", *(f"    {line}\n" for line in others)])


def _rule_lines(rule: Rule) -> Iterator[str]:
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
    return (
        text
        if is_safe and text.lower() not in _YAML_WORDS
        else json.dumps(text, ensure_ascii=False)
    )


_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def _number(value: float) -> str:
    return f"{value:.12g}"
