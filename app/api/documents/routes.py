"""Routes of the documentation. Like the pages, it needs no token and is no part of the API."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.api.documents import frame
from app.api.documents.glossary import GLOSSARY, definitions
from app.api.documents.library import API_REFERENCE, ROOT, Library
from app.api.pages import resources_dir
from app.api.reference import reference_body, reference_sections
from app.api.static_files import ASK_AGAIN, CachedFile

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
