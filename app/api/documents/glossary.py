"""The definitions of docs/glossary.md, for the pages to show beside a figure or a cause."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markdown_it.token import Token

from app.api.documents import markdown

GLOSSARY = "glossary"
_DEFINITIONS = ("formula and definition", "definition", "meaning")
_LIMITS = ("do not trust it when", "when not to trust it")
_NAMES = ("word", "figure", "cause")
_KEY = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Definition:
    """What a word, a figure or a cause means: all as plain text; `unit` and `limits` may be ""."""

    name: str
    unit: str
    text: str
    limits: str


def definitions(source: str) -> dict[str, Definition]:
    """By name in lower case, by cause, and by each key of the result's JSON; the first one counts.

    A row "GPU time lost | `gpu_time_wasted`" is found under "gpu time lost" and "gpu_time_wasted".
    """
    found: dict[str, Definition] = {}
    for row in _rows(markdown.parsed(source)):
        definition = _definition(row)
        if definition is None:
            continue
        for key in _keys(row, definition.name):
            found.setdefault(key, definition)
    return found


def _rows(tokens: Sequence[Token]) -> Iterator[Mapping[str, Token]]:
    """Each row of each table, as its cells by their column's title."""
    columns: list[str] = []
    cells: list[Token] = []
    for token in tokens:
        if token.type == "table_open":
            columns = []
        elif token.type == "tr_open":
            cells = []
        elif token.type == "inline":
            cells.append(token)
        elif token.type == "tr_close" and not columns:
            columns = [markdown.plain_text(cell.children) for cell in cells]
        elif token.type == "tr_close":
            yield dict(zip(columns, cells, strict=False))


def _definition(row: Mapping[str, Token]) -> Definition | None:
    name, text = _cell(row, *_NAMES), _cell(row, *_DEFINITIONS)
    if not name or not text:
        return None
    return Definition(name, _cell(row, "unit"), text, _cell(row, *_LIMITS))


def _cell(row: Mapping[str, Token], *columns: str) -> str:
    cells = (row[column] for column in columns if column in row)
    return next((markdown.plain_text(cell.children) for cell in cells), "")


def _keys(row: Mapping[str, Token], name: str) -> Iterator[str]:
    yield from (part.strip().lower() for part in name.split(","))
    if "key" in row:
        yield from _KEY.findall(row["key"].content)
