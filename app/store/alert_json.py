"""What alerts are made of, as JSON in a column: details, matchers, rules.

Read strictly: a value of another type is refused, so that no alert says nonsense. What a row does
not have is as it is by default: it was written before there was any.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import msgspec

from app.alerts.alert import Blame, Detail
from app.alerts.matchers import Matcher
from app.alerts.rule import Rule
from app.store.texts import clipped, clipped_values

MAX_SENTENCE = 2000
MAX_NAMED = 20  # of silent workers and of culprits: a message names no more
_MAX_NAME = 256
_MAX_LABELS = 64

T = TypeVar("T")


def detail_json(detail: Detail) -> dict[str, Any]:
    """The detail, without what is as it is by default."""
    blame = detail.blame
    given = _given(detail) | {
        "names": [clipped(name, _MAX_NAME) for name in detail.names[:MAX_NAMED]],
        "blame": None if blame is None else _blame_json(blame),
    }
    return {name: value for name, value in given.items() if value not in (None, [])}


def detail_of(value: Mapping[str, Any]) -> Detail:
    """What `detail_json` was given, lists as they are kept.

    Raises:
        ValueError: it is no such thing.
    """
    return _read(value, Detail)


def matchers_json(matchers: Sequence[Matcher]) -> list[dict[str, Any]]:
    """The matchers, each as an object."""
    return [_given(each) for each in matchers]


def matchers_of(value: Sequence[Mapping[str, Any]]) -> tuple[Matcher, ...]:
    """What `matchers_json` was given; raises as `detail_of` does."""
    return tuple(_read(each, Matcher) for each in value)


def rules_json(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """The rules, each as an object without what is as it is by default."""
    return [_given(rule) for rule in rules]


def rules_of(value: Sequence[Mapping[str, Any]]) -> list[Rule]:
    """What `rules_json` was given; raises as `detail_of` does."""
    return [_read(each, Rule) for each in value]


def labels_json(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels, the first of very many, and each not too long."""
    some = list(labels.items())[:_MAX_LABELS]
    return {clipped(key, _MAX_NAME): clipped(value, _MAX_NAME) for key, value in some}


def _blame_json(blame: Blame) -> dict[str, Any]:
    culprits = [clipped_values(dict(each), _MAX_NAME) for each in blame.culprits[:MAX_NAMED]]
    texts = {"cause": clipped(blame.cause, _MAX_NAME)}
    texts["sentence"] = clipped(blame.sentence, MAX_SENTENCE)
    return _given(blame) | texts | {"cost": _finite(blame.cost), "culprits": culprits}


def _given(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not as they are by default."""
    found = {}
    for each in fields(thing):
        value = getattr(thing, each.name)
        usual = each.default if each.default_factory is MISSING else each.default_factory()
        if value != usual:
            found[each.name] = _finite(value) if isinstance(value, float) else _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _finite(value: float | None) -> float | None:
    # JSON has no other numbers, and a message would have no use for one.
    return value if value is not None and math.isfinite(value) else None


def _read(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"a row holds no {kind.__name__}: {error}") from error
