"""One rule from the entries of a YAML mapping, with a line for everything that is wrong with it."""

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from app.alerts.matchers import BUILT_IN
from app.alerts.rule import MAX_RUNBOOK_CHARS, ON, SEVERITIES
from app.alerts.yaml_nodes import Entries, Items, Node, Scalar
from app.alerts.yaml_values import Values, short

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
MAX_LABELS = 16
MAX_PATTERN_CHARS = 128
MAX_WINDOWS = 1000

_LABEL = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_MAX_LABEL_CHARS = 256
_FOR = {"windows": "for_windows", "seconds": "for_s"}


class Fields(Values):
    """Reads the values of one rule; whatever cannot be is told with its line, and left out."""

    def values(self, rule: Entries) -> dict[str, Any]:
        """Arguments of a `Rule`, as far as they are given and can be."""
        found: dict[str, Any] = {}
        for key, (line, node) in rule.entries.items():
            if key not in _KEYS:
                self.problems.append((line, f"no key {key!r}: there are {', '.join(_KEYS)}"))
            elif not (isinstance(node, Scalar) and node.is_null):
                name, read = _KEYS[key]
                value = read(self, key, node)
                found |= value if name is None else {} if value is None else {name: value}
        return found

    def name(self, key: str, node: Node) -> str | None:
        """A name of small letters, digits and hyphens."""
        text = self.text(key, node)
        if text is None or NAME.fullmatch(text):
            return text
        self.refuse(node, f"{key}: {short(text)} is not 1 to 64 of a-z, 0-9 and -")
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

    def lasts(self, key: str, node: Node) -> dict[str, Any]:
        """Windows and seconds that it has to hold."""
        if not isinstance(node, Entries):
            self.refuse(node, f"{key}: want {{windows: 3, seconds: 30}}")
            return {}
        found: dict[str, Any] = {}
        for part, (line, inner) in node.entries.items():
            if part not in _FOR:
                self.problems.append((line, f"{key}: no key {part!r}: there are windows, seconds"))
            elif (value := self._lasts(f"{key}.{part}", part, inner)) is not None:
                found[_FOR[part]] = value
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
                self.problems.append((line, f"{key}: {short(label)} {words}"))
            elif label in BUILT_IN:
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


_Read = Callable[[Fields, str, Node], Any]
# Key in a file, argument of a rule (None: a mapping of several), and how it is read.
_KEYS: Mapping[str, tuple[str | None, _Read]] = {
    "name": ("name", Fields.name),
    "on": ("on", Fields.on),
    "jobs": ("jobs", Fields.pattern),
    "of": ("of", Fields.pattern),
    "above": ("above", Fields.number),
    "clear": ("clear", Fields.number),
    "for": (None, Fields.lasts),
    "keep_firing": ("keep_firing_s", Fields.seconds),
    "min_confidence": ("min_confidence", Fields.share),
    "severity": ("severity", Fields.severity),
    "labels": ("labels", Fields.labels),
    "runbook": ("runbook_url", Fields.url),
    "inhibits": ("inhibits", Fields.names),
    "cordon": ("cordon", Fields.name),
}


def _is_web(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in text
