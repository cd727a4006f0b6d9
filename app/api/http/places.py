"""Places for concurrent requests: pushes wait in line for theirs, and people's are kept apart.

A request is a push if it needs the scope `ingest`, as those of training jobs do; all others come
from pages, people and their scripts. However many workers push, a page finds its places free; and
while it waits for an answer, few pushes run beside it.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import cast

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


@dataclass(frozen=True, slots=True)
class PlaceCount:
    """Requests of one kind that run, and that wait in line for as long as `wait_s`."""

    running: int
    waiting: int = 0
    wait_s: float = 0.0


PLACES = {
    # A worker of a large job has one batch on its way: all of 2,000 workers may wait at once. Each
    # holds at most 64 KiB of its body meanwhile.
    Kind.BATCH: PlaceCount(256, waiting=4096, wait_s=5.0),
    # Half of the threads at most, and of the database's connections.
    Kind.REPORT: PlaceCount(8, waiting=2048, wait_s=5.0),
    Kind.PERSON: PlaceCount(512),
}
# While a person waits for an answer. Enough to keep the queue's disk busy, few enough to leave the
# interpreter to the answer.
BATCHES_BESIDE_PEOPLE = 4
# A download or a long replay must not slow down pushes for minutes.
GOES_FIRST_S = 1.0


class InFlightLimit:
    """Limits concurrent requests of the process by kind, whoever sends them."""

    def __init__(self, app: ASGIApp, *, places: Mapping[Kind, PlaceCount] = PLACES) -> None:
        self._app = app
        self._most = {kind: each.running + each.waiting for kind, each in places.items()}
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


class PlaceLimit:
    """Gives each request a place of its kind; each project has at most half of them.

    Runs behind `AuthMiddleware`; requests without a project share one share. No body is read before
    there is a place.
    """

    def __init__(self, app: ASGIApp, *, places: Mapping[Kind, PlaceCount] = PLACES) -> None:
        self._app = app
        self._people = PeopleAhead()
        batches = Line(places[Kind.BATCH], self._num_batches)
        self._people.on_none = batches.resume
        self._most_batches = places[Kind.BATCH].running
        self._lines = {
            Kind.BATCH: batches,
            Kind.REPORT: Line(places[Kind.REPORT]),
            Kind.PERSON: Line(places[Kind.PERSON]),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            return await self._app(scope, receive, send)
        kind, project = kind_of(scope), project_of_request(scope)
        line = self._lines[kind]
        await line.enter(project)
        try:
            if kind is Kind.PERSON:
                with self._people.one():
                    await self._app(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            line.leave(project)
        return None

    def _num_batches(self) -> int:
        return BATCHES_BESIDE_PEOPLE if self._people.are_waiting else self._most_batches


class PeopleAhead:
    """Whether people wait for answers; each request goes first for `GOES_FIRST_S` at most."""

    def __init__(self) -> None:
        self.on_none: Callable[[], None] = lambda: None
        self._now = 0

    @property
    def are_waiting(self) -> bool:
        """Whether one of their requests came a moment ago, and is not answered."""
        return self._now > 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """One of their requests is answered in this block."""
        self._now += 1
        is_ahead = True

        def end() -> None:
            nonlocal is_ahead
            if is_ahead:
                is_ahead = False
                self._now -= 1
                if not self._now:
                    self.on_none()

        timer = asyncio.get_running_loop().call_later(GOES_FIRST_S, end)
        try:
            yield
        finally:
            timer.cancel()
            end()


class Line:
    """Requests of one kind: those that run, and by project those that wait in line."""

    def __init__(self, places: PlaceCount, most_now: Callable[[], int] | None = None) -> None:
        self._places = places
        self._most_now = most_now or (lambda: places.running)
        self._most_of_project = max(1, int(places.running * MAX_PROJECT_SHARE))
        self._running: Counter[str | None] = Counter()
        self._num_running = 0
        self._waiting: OrderedDict[str | None, deque[asyncio.Future[bool]]] = OrderedDict()
        self._num_waiting = 0

    async def enter(self, project: str | None) -> None:
        """Returns once the request has its place; `leave` gives it back.

        Raises:
            Unavailable: the line is full, or did not move in time.
        """
        if project not in self._waiting and self._has_room(project):
            self._take(project)
        elif not await self._wait(project):
            raise Unavailable(_TOO_MANY)

    def leave(self, project: str | None) -> None:
        """Give a place back, to the next in line."""
        self._num_running -= 1
        self._running[project] -= 1
        if not self._running[project]:
            del self._running[project]  # projects without requests use no memory
        if self._waiting:
            self.resume()

    def resume(self) -> None:
        """Let in as many as there is room for, of each project in turn."""
        num_full = 0
        while num_full < len(self._waiting) and self._num_running < self._most_now():
            project, of_project = self._waiting.popitem(last=False)
            if self._running[project] < self._most_of_project:
                place = of_project.popleft()
                if not place.done():  # its request may be gone
                    self._take(project)
                    place.set_result(True)
                num_full = 0
            else:
                num_full += 1
            if of_project:
                self._waiting[project] = of_project

    def _has_room(self, project: str | None) -> bool:
        is_free = self._num_running < self._most_now()
        return is_free and self._running[project] < self._most_of_project

    def _take(self, project: str | None) -> None:
        self._num_running += 1
        self._running[project] += 1

    async def _wait(self, project: str | None) -> bool:
        """Whether a place was free in time."""
        if self._num_waiting >= self._places.waiting:
            raise Unavailable("too many requests at the same time: try again")
        of_project = self._waiting.get(project, deque())
        if len(of_project) >= self._places.waiting * MAX_PROJECT_SHARE:
            raise Unavailable(_TOO_MANY)
        self._waiting[project] = of_project
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        of_project.append(place)
        self._num_waiting += 1
        timer = loop.call_later(self._places.wait_s, self._give_up, project, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self.leave(project)
            self._forget(project, place)
            raise
        finally:
            timer.cancel()
            self._num_waiting -= 1

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


_TOO_MANY = "this project has too many requests at the same time: try again"
