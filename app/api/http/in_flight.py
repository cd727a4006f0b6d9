"""Limits of concurrent requests by kind: of the process, and of each project.

However many workers push, a page finds its places free. Who of those admitted here is worked on
is up to `work_places.py`.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Mapping
from typing import NoReturn, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.auth import header
from app.api.http.principal import project_of_request
from app.api.http.request_kinds import ADMISSIONS, Kind, kind_of
from app.errors import NoPlace, Unavailable

EVENTS_PATH = "/api/v1/events"
# Streams have their own limit; probes must be answered whatever hangs, and cost next to nothing.
_UNPACED_PATHS = {EVENTS_PATH, "/healthz", "/readyz"}
UNCOUNTED = {*_UNPACED_PATHS, "/metrics"}
# One project can use at most half.
MAX_PROJECT_SHARE = 0.5

MAX_IN_FLIGHT = {kind: admission.in_flight for kind, admission in ADMISSIONS.items()}

# Some 4 ms of work each before the first of them waits for anything.
MAX_PUSHES_PER_TURN = 12
# Of people. A turn that is short for all is what answers them soonest, too.
MAX_OTHERS_PER_TURN = 3


class RequestPace:
    """Begins so many requests in one turn of the event loop; probes and streams begin at once.

    1,024 workers that begin together would keep a page's request waiting until all of them are
    authenticated and read, and a caller with hundreds of connections would do so to the pushes. So
    pushes and all others have turns of their own, and of these each caller has the next in turn.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        pushes_per_turn: int = MAX_PUSHES_PER_TURN,
        others_per_turn: int = MAX_OTHERS_PER_TURN,
    ) -> None:
        self._app = app
        self._pushes, self._others = _Turns(pushes_per_turn), _Turns(others_per_turn)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, unless its caller has gone before its turn."""
        if scope["type"] != "http" or scope["path"] in _UNPACED_PATHS:
            return await self._app(scope, receive, send)
        if kind_of(scope).is_push:
            await self._pushes.begin(None)
        else:
            credentials = header(scope, b"authorization") or header(scope, b"cookie")
            await self._others.begin(credentials)
        if _has_gone(receive):
            return None
        return await self._app(scope, receive, send)


class _Turns:
    """So many may begin in one turn of the loop; those that wait, of each caller in turn."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._num_begun = 0
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def begin(self, caller: Hashable) -> None:
        """Returns when it is this request's turn."""
        loop = asyncio.get_running_loop()
        if self._num_begun < self._number and not self._waiting:
            if not self._num_begun:
                loop.call_soon(self._end_turn, loop)
            self._num_begun += 1
        else:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.setdefault(caller, deque()).append(turn)
            await turn

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_begun = 0
        while self._waiting and self._num_begun < self._number:
            caller, line = self._waiting.popitem(last=False)
            turn = line.popleft()
            if line:
                self._waiting[caller] = line
            if not turn.done():  # its request may be gone
                turn.set_result(None)
                self._num_begun += 1
        if self._num_begun:
            loop.call_soon(self._end_turn, loop)


def _has_gone(receive: Receive) -> bool:
    """Whether the caller has hung up; uvicorn tells it there, and else only behind the body."""
    return getattr(getattr(receive, "__self__", None), "disconnected", False) is True


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
            refuse(kind)
        self._now[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            subtract_one(self._now, key)
        return None


KeyT = TypeVar("KeyT", bound=Hashable)


def subtract_one(counted: Counter[KeyT], key: KeyT) -> None:
    """Count one less of this key."""
    # Projects without requests use no memory.
    counted[key] -= 1
    if not counted[key]:
        del counted[key]


_RETRY_AFTER_S = 2


def refuse(kind: Kind) -> NoReturn:
    """Refuse a request of a project that has used up its places.

    Raises:
        Unavailable: a push, which its client repeats.
        NoPlace: a request of people.
    """
    if kind.is_push:
        raise Unavailable(ADMISSIONS[kind].refusal)
    raise NoPlace(ADMISSIONS[kind].refusal, retry_after_s=_RETRY_AFTER_S)
