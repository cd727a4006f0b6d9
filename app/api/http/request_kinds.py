"""What kind of request it is, and how many of each kind are admitted: all limits in one table.

A request is a push if it needs the scope `ingest`, as those of training jobs do; all others come
from pages, people and their scripts. Of these, some make the service compute.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from starlette.types import Scope

from app.api.http.auth import SAFE_METHODS, claimed_length, header
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
_DOWNLOAD = re.compile(r"/api/v1/jobs/[^/]+/windows/[^/]+/(?:timeline|trace)")


class Kind(Enum):
    """The kind of a request, by its sender and by the work that it causes."""

    BATCH = "batch"  # operations: read on the event loop, and most of what arrives
    REPORT = "report"  # other pushes (registration, spans): each takes a thread
    PERSON = "person"  # rows are read or changed
    COMPUTE = "compute"
    PARSE = "parse"  # long texts, by code that holds the interpreter all the while
    PICTURE = "picture"
    DOWNLOAD = "download"  # files that are made while they are sent

    @property
    def is_push(self) -> bool:
        """Whether a worker sends it."""
        return self in (Kind.BATCH, Kind.REPORT)


# Half of the time that a client waits for an answer.
MAX_WAIT_S = 5.0
_TOO_MANY = "this project has too many requests at the same time: try again"


@dataclass(frozen=True, slots=True)
class KindAdmission:
    """How many requests of one kind there may be, and what becomes of them.

    `in_flight` of the process, of which `places` are worked on. `work_s`: seconds from the place to
    the answer; None: the work is short by its size, and goes on when its caller hangs up.
    `until_sent`: the place is kept until the answer has been sent, as it is made meanwhile.
    """

    in_flight: int
    places: int
    wait_s: float = MAX_WAIT_S
    work_s: float | None = None
    until_sent: bool = False
    refusal: str = _TOO_MANY


# Threads of all kinds together are fewer than the 40 of the process: whatever hangs, the rest
# finds one.
ADMISSIONS: Mapping[Kind, KindAdmission] = {
    # In flight: one batch of each of 2,000 workers of a project at the same time. Places: few
    # enough that one turn of the event loop is over in some 10 ms; many enough to keep the queue's
    # disk busy.
    Kind.BATCH: KindAdmission(4096, 64),
    # They take a thread and a connection of the database, which people need, too.
    Kind.REPORT: KindAdmission(2048, 8, work_s=60.0),
    Kind.PERSON: KindAdmission(512, 8, work_s=30.0),
    # Each keeps a core busy, delays all other threads by 5 ms at a time, and takes up to 100 MB.
    Kind.COMPUTE: KindAdmission(
        256, 6, work_s=60.0,
        refusal="too many answers are being computed for this project: ask again in a moment",
    ),
    # The event loop waits for every one, at every socket that it reads; a second one at the
    # same time of the same project would not be faster.
    Kind.PARSE: KindAdmission(
        64, 2, work_s=60.0,
        refusal="too many texts are being checked for this project: try again in a moment",
    ),
    # Each takes a browser and a second or two of CPU.
    Kind.PICTURE: KindAdmission(
        32, 1, wait_s=15.0, work_s=60.0,
        refusal="too many pictures are being drawn: ask again in a moment",
    ),
    Kind.DOWNLOAD: KindAdmission(
        16, 2, work_s=600.0, until_sent=True,
        refusal="too many files are being downloaded: ask again in a moment",
    ),
}  # fmt: skip

KIND_KEY = "paceline.kind"


def kind_of(scope: Scope) -> Kind:
    """The kind of a request; worked out once."""
    kind = cast(Kind | None, scope.get(KIND_KEY))
    if kind is None:
        kind = scope[KIND_KEY] = _kind(scope)
    return kind


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
    if header(scope, b"content-length") is None:
        return header(scope, b"transfer-encoding") is not None
    length = claimed_length(scope)
    return length is None or length > _SHORT_BYTES


def chart_of_picture(scope: Scope) -> str | None:
    """Path of the chart that is requested as a picture; None for other requests."""
    if scope["method"] != "GET":
        return None
    chart = _CHART.fullmatch(scope["path"])
    if chart is None or not (chart["suffix"] or _prefers_png(scope)):
        return None
    return chart["path"]


def _prefers_png(scope: Scope) -> bool:
    # PNG must come first: browsers accept it for any address.
    accept = (header(scope, b"accept") or b"").decode("latin-1").lower()
    return accept.split(",")[0].split(";")[0].strip() == PNG
