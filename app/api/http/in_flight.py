"""Concurrent requests: pushes wait in line, and places for people are kept apart from theirs.

A request is a push if it needs the scope `ingest`, as those of training jobs do; all others come
from pages, people and their scripts. However many workers push, a page finds its places free. The
line of pushes moves by project in turn, and keeps the work of one turn of the event loop short.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Mapping
from contextlib import suppress
from enum import Enum
from typing import TypeVar, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.principal import OPS_PATH, needed_scope, project_of_request
from app.errors import Unavailable

EVENTS_PATH = "/api/v1/events"
# Streams have their own limit; probes must be answered whatever hangs.
UNCOUNTED = {EVENTS_PATH, "/healthz", "/readyz", "/metrics"}
# One project can use at most half.
MAX_PROJECT_SHARE = 0.5


class Kind(Enum):
    """Who sends a request, by which it finds its places."""

    BATCH = "batch"  # operations: read on the event loop, and most of what arrives
    REPORT = "report"  # other pushes (registration, spans, scores): each takes a thread
    PERSON = "person"


_KIND_KEY = "paceline.kind"


def kind_of(scope: Scope) -> Kind:
    """The kind of a request; worked out once."""
    found = scope.get(_KIND_KEY)
    if found is None:
        found = scope[_KIND_KEY] = _kind(scope["method"], scope["path"])
    return cast(Kind, found)


def _kind(method: str, path: str) -> Kind:
    if method == "POST" and OPS_PATH.fullmatch(path):
        return Kind.BATCH
    return Kind.REPORT if needed_scope(method, path) == "ingest" else Kind.PERSON


# Of the process. Enough for one batch of each of 2,000 workers of a project at the same time.
MAX_IN_FLIGHT = {Kind.BATCH: 4096, Kind.REPORT: 2048, Kind.PERSON: 512}
# Pushes that are worked on. Few enough that one turn of the event loop is over in some 10 ms; many
# enough to keep the queue's disk busy.
MAX_BATCHES = 64
# Other pushes take a thread and a connection of the database, which people need, too.
MAX_REPORTS = 8
# Half of what a client waits for an answer.
MAX_WAIT_S = 5.0


class InFlightLimit:
    """Limits concurrent requests of the process by kind, whoever sends them."""

    def __init__(self, app: ASGIApp, *, most: Mapping[Kind, int] = MAX_IN_FLIGHT) -> None:
        self._app = app
        self._most = most
        self._now: Counter[Kind] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            return await self._app(scope, receive, send)
        kind = kind_of(scope)
        if self._now[kind] >= self._most[kind]:
            raise Unavailable("too many requests at the same time: try again")
        self._now[kind] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._now[kind] -= 1
        return None


class ProjectShareLimit:
    """Limits concurrent requests of one project to its share of each kind.

    Runs behind `AuthMiddleware`; requests without a project share one share.
    """

    def __init__(self, app: ASGIApp, *, most: Mapping[Kind, int] = MAX_IN_FLIGHT) -> None:
        self._app = app
        self._most = {kind: max(1, int(each * MAX_PROJECT_SHARE)) for kind, each in most.items()}
        self._now: Counter[tuple[Kind, str | None]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            return await self._app(scope, receive, send)
        kind = kind_of(scope)
        key = kind, project_of_request(scope)
        if self._now[key] >= self._most[kind]:
            raise Unavailable(_TOO_MANY)
        self._now[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            _subtract_one(self._now, key)
        return None


# Some 4 ms of work before the first of them waits for anything.
MAX_BEGUN_PER_TURN = 12


class PushPace:
    """Begins so many pushes in one turn of the event loop; all other requests begin at once.

    1,024 workers that begin together, or whose batches came while the loop was busy, would keep a
    page's request waiting until all are authenticated and read.
    """

    def __init__(self, app: ASGIApp, *, per_turn: int = MAX_BEGUN_PER_TURN) -> None:
        self._app = app
        self._per_turn = per_turn
        self._num_begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and kind_of(scope) is not Kind.PERSON:
            await self._begin()
        await self._app(scope, receive, send)

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self._num_begun < self._per_turn and not self._waiting:
            if not self._num_begun:
                loop.call_soon(self._end_turn, loop)
            self._num_begun += 1
        else:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            await turn

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_begun = 0
        while self._waiting and self._num_begun < self._per_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # its request may be gone
                turn.set_result(None)
                self._num_begun += 1
        if self._num_begun:
            loop.call_soon(self._end_turn, loop)


class PushLines:
    """Has pushes wait in line until they are worked on; passes on all other requests at once.

    Runs behind `BodyLimit`: a worker whose body is slow to arrive keeps no other one waiting.
    """

    def __init__(
        self, app: ASGIApp, *, batches: int = MAX_BATCHES, reports: int = MAX_REPORTS
    ) -> None:
        self._app = app
        self._lines = {Kind.BATCH: Line(batches), Kind.REPORT: Line(reports)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        line = self._lines.get(kind_of(scope)) if scope["type"] == "http" else None
        if line is None:
            return await self._app(scope, receive, send)
        project = project_of_request(scope)
        await line.enter(project)
        try:
            await self._app(scope, receive, send)
        finally:
            line.leave(project)
        return None


class Line:
    """Places of one kind: who has one, and by project who waits for one, at most `wait_s`."""

    def __init__(self, num_places: int, *, wait_s: float = MAX_WAIT_S) -> None:
        self._num_places = num_places
        self._most_of_project = max(1, int(num_places * MAX_PROJECT_SHARE))
        self._wait_s = wait_s
        self._num_taken = 0
        self._taken: Counter[str | None] = Counter()
        self._waiting: OrderedDict[str | None, deque[asyncio.Future[bool]]] = OrderedDict()

    async def enter(self, project: str | None) -> None:
        """Returns once the request has its place; `leave` gives it back.

        Raises:
            Unavailable: none was free in time.
        """
        has_room = self._taken[project] < self._most_of_project
        if self._num_taken < self._num_places and has_room and project not in self._waiting:
            self._take(project)
        elif not await self._wait(project):
            raise Unavailable(_TOO_MANY)

    def leave(self, project: str | None) -> None:
        """Give a place back, to the next in line."""
        self._num_taken -= 1
        _subtract_one(self._taken, project)
        if self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        """As many as there are places for, of each project in turn."""
        num_full = 0
        while num_full < len(self._waiting) and self._num_taken < self._num_places:
            project, of_project = self._waiting.popitem(last=False)
            if self._taken[project] < self._most_of_project:
                place = of_project.popleft()
                if not place.done():  # its request may be gone
                    self._take(project)
                    place.set_result(True)
                num_full = 0
            else:
                num_full += 1
            if of_project:
                self._waiting[project] = of_project

    def _take(self, project: str | None) -> None:
        self._num_taken += 1
        self._taken[project] += 1

    async def _wait(self, project: str | None) -> bool:
        """Whether a place was free in time."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        self._waiting.setdefault(project, deque()).append(place)
        timer = loop.call_later(self._wait_s, self._give_up, project, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self.leave(project)
            self._forget(project, place)
            raise
        finally:
            timer.cancel()

    def _give_up(self, project: str | None, place: asyncio.Future[bool]) -> None:
        if not place.done():
            place.set_result(False)
        self._forget(project, place)

    def _forget(self, project: str | None, place: asyncio.Future[bool]) -> None:
        of_project = self._waiting.get(project, deque())
        with suppress(ValueError):  # it has left the line
            of_project.remove(place)
        if not of_project:
            self._waiting.pop(project, None)


KeyT = TypeVar("KeyT", bound=Hashable)


def _subtract_one(counted: Counter[KeyT], key: KeyT) -> None:
    # Projects without requests use no memory.
    counted[key] -= 1
    if not counted[key]:
        del counted[key]


_TOO_MANY = "this project has too many requests at the same time: try again"
