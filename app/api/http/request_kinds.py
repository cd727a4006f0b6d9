"""What kind of request it is, by which it finds its places and its limits.

A request is a push if it needs the scope `ingest`, as those of training jobs do; all others come
from pages, people and their scripts. Of these, some make the service compute.
"""

import re
from enum import Enum
from typing import cast

from starlette.types import Scope

from app.api.http.auth import SAFE_METHODS, header
from app.api.http.principal import OPS_PATH, needed_scope

PNG = "image/png"
_CHART = re.compile(r"(?P<path>/api/v1/(?:.+/)?charts/[a-z][a-z-]*)(?P<suffix>\.png)?")
# Answers that are replayed, analysed, drawn, or put together from whole results of windows.
_COMPUTED = re.compile(
    r"/api/v1/(?:compare|jobs/[^/]+/(?:headline|ribbon|steps|workers/[^/]+"
    r"|windows/[^/]+(?:/[a-z-]+)?))"
)
_COMPUTED_FROM_BODY = re.compile(r"/api/v1/jobs/[^/]+/(?:fixes|shares|what-ifs)")
_PARSED = re.compile(r"/api/v1/rules(?:/check)?")
_QUESTION = re.compile(r"/api/v1/jobs/[^/]+/windows/[^/]+/what-if")
_SHORT_BYTES = 64 << 10  # a body that is parsed in a few milliseconds
_MAX_DIGITS = 9  # digits; int() of very many would be slow
_DOWNLOAD = re.compile(r"/api/v1/jobs/[^/]+/windows/[^/]+/(?:timeline|trace)")


class Kind(Enum):
    """Who sends a request, and what it makes the service do."""

    BATCH = "batch"  # operations: read on the event loop, and most of what arrives
    REPORT = "report"  # other pushes (registration, spans, scores): each takes a thread
    PERSON = "person"  # rows are read or changed
    COMPUTE = "compute"
    PARSE = "parse"  # long texts, by code that holds the interpreter all the while
    PICTURE = "picture"
    DOWNLOAD = "download"  # files that are made while they are sent

    @property
    def is_push(self) -> bool:
        """Whether a worker sends it."""
        return self in (Kind.BATCH, Kind.REPORT)


KIND_KEY = "paceline.kind"


def kind_of(scope: Scope) -> Kind:
    """The kind of a request; worked out once."""
    found = scope.get(KIND_KEY)
    if found is None:
        found = scope[KIND_KEY] = _kind(scope)
    return cast(Kind, found)


def _kind(scope: Scope) -> Kind:
    method, path = scope["method"], scope["path"]
    if method == "POST" and OPS_PATH.fullmatch(path):
        return Kind.BATCH
    if needed_scope(method, path) == "ingest":
        return Kind.REPORT
    if method in SAFE_METHODS and _DOWNLOAD.fullmatch(path):
        return Kind.DOWNLOAD
    if chart_of_picture(scope) is not None:
        return Kind.PICTURE
    if method in ("POST", "PUT") and _PARSED.fullmatch(path):
        return Kind.PARSE
    if method == "POST" and _QUESTION.fullmatch(path) and _is_long(scope):
        return Kind.PARSE
    is_computed = _COMPUTED.fullmatch(path) or _CHART.fullmatch(path)
    if is_computed or (method in ("POST", "PUT") and _COMPUTED_FROM_BODY.fullmatch(path)):
        return Kind.COMPUTE
    return Kind.PERSON


def _is_long(scope: Scope) -> bool:
    """Whether the body is long, or does not say how long it is."""
    length = header(scope, b"content-length")
    if length is None:
        return header(scope, b"transfer-encoding") is not None
    return not length.isdigit() or len(length) > _MAX_DIGITS or int(length) > _SHORT_BYTES


def chart_of_picture(scope: Scope) -> str | None:
    """Path of the chart that is requested as a picture; None of other requests."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    found = _CHART.fullmatch(scope["path"])
    if found is None or not (found["suffix"] or _prefers_png(scope)):
        return None
    return found["path"]


def _prefers_png(scope: Scope) -> bool:
    # PNG must come first: browsers accept it for any address.
    accept = (header(scope, b"accept") or b"").decode("latin-1").lower()
    return accept.split(",")[0].split(";")[0].strip() == PNG
