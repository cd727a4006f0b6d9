"""Families that repeat a valid part of a document: its items, equal or each of another number.

A document is a JSON value, or a list of them that is written one a line. Whatever is refused at
once costs little however a reader goes on: what comes after that needs records that are valid.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.harness.fuzz.input_families import Family

Path = tuple[str | int, ...]
Unit = Callable[[int], str]
_MARK = "@@here@@"
_LEAF = re.compile(r'"@@(\d+)@@"')
_LARGE = 10**15  # a time in nanoseconds: a second apart, so that steps do not overlap
_SECOND_NS = 10**9
_ANY_NUMBER = 100_000
_APART = 10  # more than the samples' own numbers are, so that none comes twice
# Fields that say the same of a record: with one of them alone, records contradict each other.
TOGETHER: Sequence[frozenset[str]] = (
    frozenset({"rank", "dp_rank"}),
    frozenset({"rank", "stage"}),
    frozenset({"step", "start_ts"}),
    frozenset({"step", "start_ns"}),
    frozenset({"name", "ts"}),
    frozenset({"startTimeUnixNano", "endTimeUnixNano"}),
    frozenset({"spanId", "startTimeUnixNano", "endTimeUnixNano"}),
    frozenset({"spanId", "startTimeUnixNano", "endTimeUnixNano", "intValue"}),
    frozenset({"rank", "pid"}),
    frozenset({"id", "coll_sn"}),
)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part that is repeated: `unit` is the text of its item of a number."""

    name: str
    path: Path
    before: str
    unit: Unit
    separator: str
    after: str
    num_items: int  # that are there without it

    def of_items(self, count: int) -> str:
        """The document with so many items more."""
        return self.before + self.separator.join(map(self.unit, range(max(1, count)))) + self.after

    def family(self) -> Family:
        """The document by its size in bytes."""
        width = len(self.unit(_ANY_NUMBER)) + len(self.separator)
        return lambda size: self.of_items(size // width)


def repeats_of(document: Any, *, is_lines: bool = False) -> Iterator[Repeat]:
    """Every list of a document with its items repeated, every object with further keys."""
    seen: set[tuple[str, str]] = set()
    for path, part in _containers(document, ()):
        shape = _shape(part) if path else ""
        label = shown(path) or "document"
        if (label, shape) in seen or not part:
            continue
        seen.add((label, shape))
        around = _Around.of(document, path, is_lines=is_lines)
        if isinstance(part, dict):
            value = json.dumps(next(iter(part.values())))
            yield around.repeat(f"{label}: keys", _under_new_keys(value))
            continue
        whole = around.separator.join(json.dumps(each) for each in part)
        yield around.repeat(f"{label}: all items", _always(whole))
        for number, item in enumerate(_of_each_shape(part)):
            for name, unit in units_of(item):
                yield around.repeat(f"{label} item {number}: {name}", unit)


def _under_new_keys(value: str) -> Unit:
    """The value, JSON text, under a key of the item's number."""
    return lambda number: f'"1{number:06}": {value}'


def _always(text: str) -> Unit:
    return lambda _: text


def units_of(item: Any) -> Iterator[tuple[str, Unit]]:
    """An item: as it is, with a field of another number in each, and without a field."""
    leaves = _leaves(item)
    yield "equal", _unit(item, ())
    every = [path for paths in leaves.values() for path in paths]
    if len(leaves) > 1:
        yield "all distinct", _unit(item, every)
        ids = {name.rpartition(".")[2].replace("[]", ""): paths for name, paths in leaves.items()}
        for names in TOGETHER:
            if names <= ids.keys():
                chosen = [path for name in sorted(names) for path in ids[name]]
                yield f"{' and '.join(sorted(names))} distinct", _unit(item, chosen)
    for name, paths in leaves.items():
        yield f"{name or 'value'} distinct", _unit(item, paths)
        if name and not name.endswith("[]"):
            yield f"without {name}", _unit(_without(item, paths), ())


@dataclass(frozen=True, slots=True)
class _Around:
    """The text of a document before and after the place of further items of a part."""

    path: Path
    before: str
    separator: str
    after: str
    num_items: int

    @classmethod
    def of(cls, document: Any, path: Path, *, is_lines: bool) -> "_Around":
        part = at_path(document, path)
        more = {**part, _MARK: 0} if isinstance(part, dict) else [*part, _MARK]
        marked = with_value(document, path, more)
        is_of_lines = is_lines and not path
        text = "\n".join(map(json.dumps, marked)) + "\n" if is_lines else json.dumps(marked)
        mark = f'"{_MARK}": 0' if isinstance(part, dict) else f'"{_MARK}"'
        before, _, after = text.partition(mark)
        return cls(path, before, "\n" if is_of_lines else ", ", after, len(part))

    def repeat(self, name: str, unit: Unit) -> Repeat:
        return Repeat(
            name, self.path, self.before, unit, self.separator, self.after, self.num_items
        )


def shown(path: Path) -> str:
    """A path as text, without the numbers of items."""
    return "".join("[]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


def at_path(document: Any, path: Path) -> Any:
    """The part of a document at a path."""
    for key in path:
        document = document[key]
    return document


def with_value(document: Any, path: Path, value: Any) -> Any:
    """A copy of the document with this value at a path."""
    if not path:
        return value
    changed = copy.deepcopy(document)
    at_path(changed, path[:-1])[path[-1]] = value
    return changed


def _containers(part: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if not isinstance(part, dict | list):
        return
    yield path, part
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        yield from _containers(value, (*path, key))


def _shape(part: Any) -> str:
    """Which fields a value has, so that of many records each kind is tried once."""
    if isinstance(part, dict):
        return "{" + ",".join(f"{key}:{_shape(value)}" for key, value in part.items()) + "}"
    if isinstance(part, list):
        return "[" + ",".join(sorted({_shape(each) for each in part})) + "]"
    return type(part).__name__


def _of_each_shape(items: Sequence[Any]) -> list[Any]:
    return list({_shape(each): each for each in reversed(items)}.values())[::-1]


def _leaves(item: Any) -> dict[str, list[Path]]:
    """Paths of an item's values, by their names."""
    found: dict[str, list[Path]] = {}

    def walk(part: Any, path: Path) -> None:
        if isinstance(part, dict | list):
            for key, value in part.items() if isinstance(part, dict) else enumerate(part):
                walk(value, (*path, key))
        elif part is not None:
            found.setdefault(shown(path), []).append(path)

    walk(item, ())
    return found


def _unit(item: Any, distinct: Sequence[Path]) -> Unit:
    """The text of an item; values at these paths differ by its number."""
    made: list[Unit] = []  # once it is asked for: most of all families are not

    def unit(number: int) -> str:
        if not made:
            made.append(_made_unit(item, distinct))
        return made[0](number)

    return unit


def _made_unit(item: Any, distinct: Sequence[Path]) -> Unit:
    values, marked = [], item
    for at, path in enumerate(distinct):
        values.append(at_path(item, path))
        marked = with_value(marked, path, f"@@{at}@@")
    text = json.dumps(marked)
    if not distinct:
        return lambda _: text
    parts = _LEAF.split(text)  # texts, and between them the numbers of values
    literals, chosen = parts[::2], [values[int(at)] for at in parts[1::2]]

    def unit(number: int) -> str:
        found = [literals[0]]
        for value, literal in zip(chosen, literals[1:], strict=True):
            found += [json.dumps(numbered(value, number)), literal]
        return "".join(found)

    return unit


def numbered(value: Any, number: int) -> Any:
    """Another value of the same kind for each number."""
    match value:
        case bool():
            return number % 2 == 0
        case int():
            return value + (number + 1) * (_SECOND_NS if value >= _LARGE else _APART)
        case float():
            return value + (number + 1)
        case str() if value.isascii() and value.isdigit():
            return str(numbered(int(value), number))
        case _:
            return f"{value}{number}"


def _without(item: Any, paths: Sequence[Path]) -> Any:
    left = copy.deepcopy(item)
    for path in paths:
        del at_path(left, path[:-1])[path[-1]]
    return left
