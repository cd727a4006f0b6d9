"""The pages' addresses, and Plotly's script."""

import asyncio
import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import app
from app.api.static_files import ASK_AGAIN, NEVER_CHANGES, PLOTLY_PATH, CachedFile, FrontendFiles
from app.errors import StartUpFailed
from app.result.causes import causes_for_pages

API_ROOT = "/api"
PLOTLY_FILE = Path("vendor", "plotly-cartesian.min.js.gz")
# One document answers for all of them; frontend/js/app.js finds the page by its address.
PAGE_PATHS = (
    "/",
    "/jobs/{job_id}",
    "/jobs/{job_id}/timeline",
    "/jobs/{job_id}/what-if",
    "/jobs/{job_id}/workers/{worker}",
    "/hosts",
    "/hosts/{host:path}",  # a slash, too, may be in a host's name
    "/alerts",
    "/alerts/rules",
    "/alerts/receivers",
    "/settings",
    "/settings/audit",
    "/compare",
    "/status",
)


# Filled in, so that pages name causes as the rest of Paceline does.
NO_CAUSES = '<script id="causes" type="application/json">{}</script>'
_CAUSES = NO_CAUSES.replace("{}", json.dumps(causes_for_pages()))


def frontend_dir() -> Path:
    """Directory of the frontend.

    Raises:
        StartUpFailed: it is not installed.
    """
    return resources_dir("frontend", "index.html")


def resources_dir(name: str, marker: str) -> Path:
    """A directory that has `marker`: beside app/ in a checkout, inside it in a wheel.

    Raises:
        StartUpFailed: in neither.
    """
    package = Path(app.__file__).parent
    for place in (package.parent / name, package / "_resources" / name):
        if (place / marker).is_file():
            return place
    raise StartUpFailed(f"the files of {name}/ are missing: install Paceline again")


class Pages:
    """The page for its routes, and Plotly."""

    def __init__(self, directory: Path) -> None:
        self.files = FrontendFiles(directory)
        self._plotly = _plotly(directory)
        self._version = self._plotly.etag.strip('"')[:12]

    def router(self) -> APIRouter:
        """Routes of the pages; none is part of the API."""
        answers = {**dict.fromkeys(PAGE_PATHS, self._index), PLOTLY_PATH: self._script}
        return APIRouter(routes=[Route(path, answer) for path, answer in answers.items()])

    def or_else(self, otherwise: ASGIApp) -> ASGIApp:
        """ASGI app for unknown paths: a page with status 404 for browsers.

        Other callers get the answer of `otherwise`, the API's.
        """

        async def unknown(scope: Scope, receive: Receive, send: Send) -> None:
            if not _is_for_reader(scope):
                return await otherwise(scope, receive, send)
            headers = {"cache-control": "no-store", "vary": "accept"}
            html = await asyncio.to_thread(self._html)
            page = Response(html, 404, headers=headers, media_type="text/html")
            return await page(scope, receive, send)

        return unknown

    def _index(self, request: Request) -> Response:
        return CachedFile.of(self._html(), "text/html").answer(request, ASK_AGAIN)

    def _html(self) -> bytes:
        # The version is in the address, so a browser downloads Plotly's 1.5 MB once.
        html = self.files.index().replace(NO_CAUSES, _CAUSES)
        return html.replace(f'"{PLOTLY_PATH}"', f'"{PLOTLY_PATH}?v={self._version}"').encode()

    def _script(self, request: Request) -> Response:
        is_versioned = request.query_params.get("v") == self._version
        return self._plotly.answer(request, NEVER_CHANGES if is_versioned else ASK_AGAIN)


@cache
def _plotly(frontend: Path) -> CachedFile:
    """Plotly with the charts that Paceline draws, and not its fifty others."""
    gzipped = (frontend / PLOTLY_FILE).read_bytes()
    script = CachedFile.of(gzip.decompress(gzipped), "text/javascript")
    return replace(script, gzipped=gzipped)


def _is_for_reader(scope: Scope) -> bool:
    """Whether a browser requests a page, outside the API."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    is_api = scope["path"] == API_ROOT or scope["path"].startswith(f"{API_ROOT}/")
    return not is_api and "text/html" in Headers(scope=scope).get("accept", "").lower()
