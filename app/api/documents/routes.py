"""Routes of the documentation. Like the pages, it needs no token and is no part of the API.

Around each page stand the app's bar, the list of pages, and styles.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from html import escape

from fastapi import APIRouter, Request
from markdown_it.token import Token
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from app.api.documents.library import API_REFERENCE, ROOT, Group, Library, Page, parsed, plain_text
from app.api.pages import ASK_AGAIN, CachedFile, resources_dir
from app.api.reference import reference_body, reference_sections

_STYLES = (
    "tokens.css",
    "base.css",
    "components/top-bar.css",
    "components/buttons.css",
    "components/state-icon.css",
    "pages/docs.css",
)
_API_TITLE = "API reference"
_MAX_SECTIONS = 24  # of the page itself in the side list; a longer one lists its chapters only

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Paceline</title>
<link rel="icon" type="image/svg+xml" href="/static/favicon.svg">
<link rel="preload" href="/static/fonts/inter-latin.woff2" as="font" type="font/woff2" crossorigin>
{styles}
<script src="/static/js/theme-at-start.js"></script>
<script type="module" src="/static/js/docs.js"></script>
</head>
<body>
<a class="skip" href="#page">Skip to the page</a>
<header id="top-bar" class="top-bar"><noscript><a href="/">Paceline</a></noscript></header>
<main id="page" class="page docs" tabindex="-1">
<nav class="docs-pages" aria-label="Documentation">
<div id="docs-search"></div>
{pages}
</nav>
<article>
{body}
</article>
</main>
<div id="announcer" class="unseen" role="status" aria-live="polite"></div>
</body>
</html>
"""


def document(title: str, body: str, address: str = "", sections: str = "") -> str:
    """A page within the frame; `sections` are the items of its own list in the side list."""
    styles = "\n".join(f'<link rel="stylesheet" href="/static/css/{name}">' for name in _STYLES)
    pages = _side_list(library().groups, address, sections)
    return _DOCUMENT.format(title=escape(title), styles=styles, pages=pages, body=body)


def _side_list(groups: Sequence[Group], here: str, sections: str) -> str:
    parts = []
    for group in groups:
        links = [_link(page.address, page.title, here, sections) for page in group.pages]
        parts.append(f"<h2>{escape(group.title)}</h2><ul>{''.join(links)}</ul>")
    link = _link(API_REFERENCE, _API_TITLE, here, sections)
    return "".join([*parts, f"<h2>API</h2><ul>{link}</ul>"])


def _link(address: str, title: str, here: str, sections: str) -> str:
    if address != here:
        return f'<li><a href="{escape(address)}">{escape(title)}</a></li>'
    inner = f"<ul>{sections}</ul>" if sections else ""
    return f'<li><a href="{escape(address)}" aria-current="page">{escape(title)}</a>{inner}</li>'


def _sections(page: Page) -> str:
    inner = [heading for heading in page.headings if heading.level in (2, 3)]
    if len(inner) > _MAX_SECTIONS:
        inner = [heading for heading in inner if heading.level == 2]
    return "".join(
        f'<li class="is-level-{heading.level}"><a href="#{escape(heading.anchor)}">'
        f"{escape(heading.text)}</a></li>"
        for heading in inner
    )


GLOSSARY = "glossary"
_DEFINITIONS = ("formula and definition", "definition", "meaning")
_LIMITS = ("do not trust it when", "when not to trust it")
_NAMES = ("word", "figure", "cause")
_KEY = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Definition:
    """The meaning of a word, figure or cause, as plain text; `unit` and `limits` may be ""."""

    name: str
    unit: str
    text: str
    limits: str


def definitions(source: str) -> dict[str, Definition]:
    """By name in lower case, by cause, and by each key of the result's JSON; the first one counts.

    A row "GPU time lost | `gpu_time_wasted`" has the keys "gpu time lost" and "gpu_time_wasted".
    """
    by_key: dict[str, Definition] = {}
    for row in _rows(parsed(source)):
        name, text = _cell(row, *_NAMES), _cell(row, *_DEFINITIONS)
        if not name or not text:
            continue
        definition = Definition(name, _cell(row, "unit"), text, _cell(row, *_LIMITS))
        keys = [part.strip().lower() for part in name.split(",")]
        keys += _KEY.findall(row["key"].content) if "key" in row else []
        for key in keys:
            by_key.setdefault(key, definition)
    return by_key


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
            columns = [plain_text(cell.children) for cell in cells]
        elif token.type == "tr_close":
            yield dict(zip(columns, cells, strict=False))


def _cell(row: Mapping[str, Token], *columns: str) -> str:
    cells = (row[column] for column in columns if column in row)
    return next((plain_text(cell.children) for cell in cells), "")


@cache
def library() -> Library:
    """The documentation of this installation, read once."""
    return Library(resources_dir("docs", "README.md"))


@cache
def _page(name: str) -> CachedFile:
    page = library().page(name)
    assert page is not None  # noqa: S101 - `documentation` has looked
    html = document(page.title, page.html, page.address, _sections(page))
    return CachedFile.of(html.encode(), "text/html")


@cache
def _json_file(write: Callable[[], object]) -> CachedFile:
    return CachedFile.of(json.dumps(write(), separators=(",", ":")).encode(), "application/json")


def _definitions() -> object:
    by_key = definitions(library().source(GLOSSARY))
    return {key: asdict(definition) for key, definition in by_key.items()}


# FastAPI keeps every function that it was given, so none of them may refer to an application.
router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
def openapi_document(request: Request) -> Response:
    """The OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get(API_REFERENCE)
def reference(request: Request) -> Response:
    """The OpenAPI document as a page."""
    described = request.app.openapi()
    sections = "".join(
        f'<li><a href="#{escape(name)}">{escape(name)}</a></li>'
        for name in reference_sections(described)
    )
    return HTMLResponse(document(_API_TITLE, reference_body(described), API_REFERENCE, sections))


@router.get(f"{ROOT}/titles.json")
def titles(request: Request) -> Response:
    """Titles and headings of all pages, for the search."""
    return _json_file(library().titles).answer(request, ASK_AGAIN)


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
        body = f"<h1>No such page</h1><p>The documentation has no page {escape(name)}.</p>"
        return HTMLResponse(document("No such page", body), 404)
    return _page(name).answer(request, ASK_AGAIN)
