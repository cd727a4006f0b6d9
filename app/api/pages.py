"""The pages' addresses, and Plotly's script."""

import asyncio
import hashlib
import json
import mimetypes
import re
import stat
import time
from dataclasses import dataclass, replace
from functools import cache
from gzip import compress, decompress
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import NotModifiedResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import app
from app.api.http.auth import SAFE_METHODS
from app.errors import NotFound, StartUpFailed
from app.result.causes import causes_for_pages

STATIC = "/static/"
PLOTLY_PATH = f"{STATIC}plotly.min.js"  # a route of its own: it has a version of its own
ASK_AGAIN = "no-cache"
FOR_A_DAY = "public, max-age=86400"
NEVER_CHANGES = "public, max-age=31536000, immutable"
# All style sheets of a page in one file.
STYLES = "pages.css"
_STYLE_SHEET = re.compile(rf'( *<link rel="stylesheet" href="{STATIC}(css/[^"]+)">\n)')
_VERSIONED = re.compile(rf'((?:href|src)="){STATIC}(js/|{re.escape(STYLES)})')
_VERSION = re.compile(r"v([0-9a-f]{12})/(.+)")
_LOOK_EVERY_S = 1.0
# Machines know different media types of these.
_MEDIA_TYPES = {".js": "text/javascript", ".woff2": "font/woff2"}
_COMPRESSED = ("text/", "image/svg")


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


def _takes_gzip(request: Request) -> bool:
    offered = request.headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    return any(re.fullmatch(r"gzip(;q=(1|0?\.0*[1-9])[\d.]*)?", item) for item in offered)


_Stamp = tuple[int, int]  # when a file was changed, in nanoseconds, and its bytes


class FrontendFiles:
    """Files of a directory by their names below it; read anew when they change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, tuple[_Stamp, CachedFile]] = {}
        self._version = ""
        self._look_at_s = float("-inf")
        self._styles: tuple[str, CachedFile] | None = None

    def index(self) -> str:
        """The page, which names its scripts and styles by the version of all files."""
        html = (self._directory / "index.html").read_text("utf-8")
        first, *others = _STYLE_SHEET.findall(html)
        for sheet, _ in others:
            html = html.replace(sheet, "")
        html = html.replace(first[0], f'    <link rel="stylesheet" href="{STATIC}{STYLES}">\n')
        return _VERSIONED.sub(rf"\1{STATIC}v{self.version()}/\2", html)

    def version(self) -> str:
        """Twelve hexadecimal digits of all names, times of change and sizes."""
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_EVERY_S
            digest = hashlib.sha256()
            for path in sorted(self._directory.rglob("*")):
                state = path.lstat()
                name = path.relative_to(self._directory)
                digest.update(f"{name} {state.st_mtime_ns} {state.st_size}\n".encode())
            self._version = digest.hexdigest()[:12]
        return self._version

    def find(self, name: str) -> tuple[CachedFile, str] | None:
        """A file, and its Cache-Control; None if there is none of this name."""
        versioned = _VERSION.fullmatch(name)
        keep = ASK_AGAIN
        if versioned is not None:
            name = versioned[2]
            keep = NEVER_CHANGES if versioned[1] == self.version() else ASK_AGAIN
        file = self._all_styles() if name == STYLES else self._file(name)
        if file is None:
            return None
        return file, FOR_A_DAY if name.endswith(".woff2") else keep

    def _file(self, name: str) -> CachedFile | None:
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
            return None
        path = self._directory.joinpath(*parts)
        try:
            state = path.lstat()
            if not stat.S_ISREG(state.st_mode):
                return None
            stamp = state.st_mtime_ns, state.st_size
            known = self._read.get(name)
            if known is None or known[0] != stamp:
                known = self._read[name] = stamp, _cached(path.read_bytes(), name)
        except OSError:
            return None
        return known[1]

    def _all_styles(self) -> CachedFile:
        version = self.version()
        if self._styles is None or self._styles[0] != version:
            html = (self._directory / "index.html").read_text("utf-8")
            sheets = [self._file(name) for _, name in _STYLE_SHEET.findall(html)]
            content = b"\n".join(sheet.plain for sheet in sheets if sheet is not None)
            self._styles = version, _cached(content, STYLES)
        return self._styles[1]


def _cached(content: bytes, name: str) -> CachedFile:
    guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
    media_type = _MEDIA_TYPES.get(Path(name).suffix, guessed)
    file = CachedFile.of(content, media_type)
    is_text = media_type.startswith(_COMPRESSED)
    return replace(file, gzipped=compress(content, 6)) if is_text else file


class StaticFiles:
    """Answers requests for the frontend's files; all others are the application's."""

    def __init__(self, app: ASGIApp, *, files: FrontendFiles) -> None:
        self._app = app
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises NotFound."""
        path = scope["path"]
        is_file = path.startswith(STATIC) and path != PLOTLY_PATH
        if not is_file or scope["method"] not in SAFE_METHODS:
            return await self._app(scope, receive, send)
        kept = self._files.find(path.removeprefix(STATIC))
        if kept is None:
            raise NotFound("no such file")
        file, cache_control = kept
        return await file.answer(Request(scope), cache_control)(scope, receive, send)


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
    """Directory of the frontend; raises StartUpFailed if it is not installed."""
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
    return replace(CachedFile.of(decompress(gzipped), "text/javascript"), gzipped=gzipped)


def _is_for_reader(scope: Scope) -> bool:
    """Whether a browser requests a page, outside the API."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    is_api = scope["path"] == API_ROOT or scope["path"].startswith(f"{API_ROOT}/")
    return not is_api and "text/html" in Headers(scope=scope).get("accept", "").lower()
