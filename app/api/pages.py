"""The frontend's files, and Plotly's script."""

import asyncio
import gzip
import hashlib
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

import app
from app.errors import StartUpFailed

API_ROOT = "/api"
PLOTLY_PATH = "/static/plotly.min.js"
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
ASK_AGAIN = "no-cache"
NEVER_CHANGES = "public, max-age=31536000, immutable"


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


class PageFiles(StaticFiles):
    """Static files with an ETag, revalidated each time; fonts are cached for a day."""

    @override
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        is_font = path.endswith(".woff2")
        response.headers["cache-control"] = "public, max-age=86400" if is_font else ASK_AGAIN
        return response


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file in memory with its ETag; `gzipped` once it is compressed."""

    plain: bytes
    media_type: str
    etag: str
    gzipped: bytes | None = None

    @classmethod
    def of(cls, content: bytes, media_type: str) -> "CachedFile":
        """The file with its ETag."""
        digest = hashlib.sha256(content).hexdigest()[:32]
        return cls(content, media_type, f'"{digest}"')

    def answer(self, request: Request, cache_control: str) -> Response:
        """The file, unless the browser has it already."""
        headers = {"etag": self.etag, "cache-control": cache_control, "vary": "accept-encoding"}
        content = self.plain
        if self.gzipped is not None and _takes_gzip(request):
            content = self.gzipped
            headers |= {"content-encoding": "gzip", "etag": f'{self.etag[:-1]}-gzip"'}
        response = Response(content, media_type=self.media_type, headers=headers)
        known = request.headers.get("if-none-match", "")
        if headers["etag"] in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return NotModifiedResponse(response.headers)
        return response


class Pages:
    """The page for its routes, and Plotly."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._plotly = _plotly(directory)
        self._version = self._plotly.etag.strip('"')[:12]

    def router(self) -> APIRouter:
        """Routes of the pages; none is part of the API."""
        answers = {**dict.fromkeys(PAGE_PATHS, self._index), PLOTLY_PATH: self._script}
        return APIRouter(routes=[Route(path, answer) for path, answer in answers.items()])

    def files(self) -> PageFiles:
        """Static files under /static."""
        return PageFiles(directory=self._directory)

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
        html = (self._directory / "index.html").read_text("utf-8")
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


def _takes_gzip(request: Request) -> bool:
    offered = request.headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    return any(re.fullmatch(r"gzip(;q=(1|0?\.0*[1-9])[\d.]*)?", item) for item in offered)
