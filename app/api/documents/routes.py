"""Routes of the documentation. Like the pages, it needs no token and is no part of the API."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache

from fastapi import APIRouter, Request
from markdown_it.token import Token
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.api.documents import frame, markdown
from app.api.documents.library import API_REFERENCE, ROOT, Library
from app.api.pages import resources_dir
from app.api.reference import reference_body, reference_sections
from app.api.static_files import ASK_AGAIN, CachedFile

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


_JSON, _HTML = "application/json", "text/html"


@cache
def library() -> Library:
    """The documentation of this installation, read once."""
    return Library(resources_dir("docs", "README.md"))


@cache
def _page(name: str) -> CachedFile:
    page = library().page(name)
    assert page is not None  # noqa: S101 - `documentation` has looked
    return CachedFile.of(frame.document(page, library().groups).encode(), _HTML)


@cache
def _json_file(write: Callable[[], object]) -> CachedFile:
    return CachedFile.of(json.dumps(write(), separators=(",", ":")).encode(), _JSON)


def _titles() -> object:
    return library().titles()


def _definitions() -> object:
    found = definitions(library().source(GLOSSARY))
    return {key: asdict(definition) for key, definition in found.items()}


# FastAPI keeps every function that it was given, so none of them may refer to an application.
router = APIRouter(include_in_schema=False)


@router.get(API_REFERENCE)
def reference(request: Request) -> Response:
    """The OpenAPI document as a page."""
    document = request.app.openapi()
    sections = reference_sections(document)
    return HTMLResponse(frame.api_document(reference_body(document), sections, library().groups))


@router.get(f"{ROOT}/titles.json")
def titles(request: Request) -> Response:
    """Titles and headings of all pages, for the search."""
    return _json_file(_titles).answer(request, ASK_AGAIN)


@router.get(f"{ROOT}/definitions.json")
def glossary(request: Request) -> Response:
    """Definitions of figures and causes by their keys, for the pages."""
    return _json_file(_definitions).answer(request, ASK_AGAIN)


@router.api_route(ROOT, methods=["GET", "HEAD"])
@router.api_route(f"{ROOT}/{{name:path}}", methods=["GET", "HEAD"])
def documentation(request: Request, name: str = "") -> Response:
    """A page of docs/; the index without a name."""
    page = library().page(name.removesuffix(".md").removesuffix("README"))
    if page is not None and library().page(name) is None:
        return RedirectResponse(page.address)  # a file of the repository
    if page is None:
        return HTMLResponse(frame.missing_document(name, library().groups), 404)
    return _page(name).answer(request, ASK_AGAIN)
