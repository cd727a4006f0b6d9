"""YAML from strangers as a stream of events, in time proportional to its size.

PyYAML and libyaml take time with the square of the size for nested brackets, which they never
refuse, for directives, and for numbers of thousands of digits. So depth is counted while the text
is read, and reading ends at the limit.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from app.work_budget import checkpoint

# libyaml where it is there: a text of 256 kB takes seconds without.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DIRECTIVE = re.compile(r"^\ufeff?%(?:TAG|YAML)\b", re.MULTILINE)


class YamlRefused(Exception):
    """The text has valid YAML that no text of ours has; `line`, from 1, and words."""

    def __init__(self, line: int, words: str) -> None:
        super().__init__(f"line {line}: {words}")
        self.line = line
        self.words = words


MAX_EVENTS = 20_000  # 200 rules with every key have 9,000


def yaml_events(text: str, *, max_depth: int) -> Iterator[Any]:
    """The parser's events of a text with at most `max_depth` lists and mappings in each other.

    Raises:
        YamlRefused: it is nested more deeply, has more than `MAX_EVENTS` values, lists and
            mappings, or has a directive (%TAG, %YAML).
        yaml.YAMLError, UnicodeEncodeError: it is no YAML.
        CallerGone, TooCostly: nobody waits for it, or it takes too long.
    """
    directive = _DIRECTIVE.search(text)
    if directive is not None:
        line = text.count("\n", 0, directive.start()) + 1
        raise YamlRefused(line, "a directive: leave lines out that begin with %")
    depth = 0
    events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
    for number, event in enumerate(events):
        checkpoint()
        if number > MAX_EVENTS:
            raise YamlRefused(event.start_mark.line + 1, f"more than {MAX_EVENTS:,} values")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > max_depth:
            line = event.start_mark.line + 1
            raise YamlRefused(line, "this is nested too deeply")
        yield event
