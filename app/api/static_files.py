"""The frontend's files, from memory: a page needs more than a hundred of them.

They are answered before authentication, places and routes, which they need none of. A page names
them with the version of all of them in the path, so a browser that has them asks for none again.
"""

import hashlib
import mimetypes
import re
import stat
import time
from dataclasses import dataclass, replace
from gzip import compress
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import NotModifiedResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.auth import SAFE_METHODS
from app.errors import NotFound

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
# Of these machines do not agree.
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


_Seen = tuple[int, int]  # when a file was changed, in nanoseconds, and its bytes


class FrontendFiles:
    """Files of a directory by their names below it; read anew when they change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, tuple[_Seen, CachedFile]] = {}
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
            found = hashlib.sha256()
            for path in sorted(self._directory.rglob("*")):
                state = path.lstat()
                name = path.relative_to(self._directory)
                found.update(f"{name} {state.st_mtime_ns} {state.st_size}\n".encode())
            self._version = found.hexdigest()[:12]
        return self._version

    def find(self, name: str) -> tuple[CachedFile, str] | None:
        """A file, and for how long a browser may keep it."""
        versioned = _VERSION.fullmatch(name)
        keep = ASK_AGAIN
        if versioned is not None:
            name = versioned[2]
            keep = NEVER_CHANGES if versioned[1] == self.version() else ASK_AGAIN
        found = self._all_styles() if name == STYLES else self._file(name)
        if found is None:
            return None
        return found, FOR_A_DAY if name.endswith(".woff2") else keep

    def _file(self, name: str) -> CachedFile | None:
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
            return None
        path = self._directory.joinpath(*parts)
        try:
            state = path.lstat()
            if not stat.S_ISREG(state.st_mode):
                return None
            seen = state.st_mtime_ns, state.st_size
            known = self._read.get(name)
            if known is None or known[0] != seen:
                known = self._read[name] = seen, _cached(path.read_bytes(), name)
        except OSError:
            return None
        return known[1]

    def _all_styles(self) -> CachedFile:
        version = self.version()
        if self._styles is None or self._styles[0] != version:
            html = (self._directory / "index.html").read_text("utf-8")
            sheets = [self._file(name) for _, name in _STYLE_SHEET.findall(html)]
            content = b"\n".join(each.plain for each in sheets if each is not None)
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
        """Answer one request.

        Raises:
            NotFound: there is no such file.
        """
        if scope["type"] != "http" or not scope["path"].startswith(STATIC):
            return await self._app(scope, receive, send)
        if scope["path"] == PLOTLY_PATH or scope["method"] not in SAFE_METHODS:
            return await self._app(scope, receive, send)
        found = self._files.find(scope["path"].removeprefix(STATIC))
        if found is None:
            raise NotFound("no such file")
        file, keep = found
        return await file.answer(Request(scope), keep)(scope, receive, send)
