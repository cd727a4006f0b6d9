"""How many requests there may be: begun in a turn, in flight, and worked on.

However many workers push, a page has places free: all limits are by kind, and of each kind a
project has at most half (`request_kinds.py` has the table).

CPU is a limit like any other: parsing and computing hold the interpreter, and each thread of it
makes the event loop wait. So each kind of request has few places, and the rest waits in line by
project in turn. A request that gets no place in time is refused. Work for a caller that has hung up
is given up, and so is work over its time (`app.work_budget`).
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import NoReturn, TypeVar

from anyio import CancelScope
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from app.api.http.auth import SAFE_METHODS, header
from app.api.http.principal import project_of_request
from app.api.http.request_kinds import ADMISSIONS, MAX_WAIT_S, Kind, KindAdmission, kind_of
from app.errors import CallerGone, NoPlace, Unavailable
from app.work_budget import WorkBudget, within

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
    """Limits how many requests begin in one turn of the event loop; not probes and streams.

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
        if scope["path"] in _UNPACED_PATHS:
            return await self._app(scope, receive, send)
        if kind_of(scope).is_push:
            await self._pushes.begin(None)
        else:
            await self._others.begin(header(scope, b"authorization") or header(scope, b"cookie"))
        if _has_gone(receive):
            return None
        return await self._app(scope, receive, send)


class _Turns:
    """Lets `number` requests begin per turn of the loop; the others wait, by caller in turn."""

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
    """Limits concurrent requests of the process by kind, of all callers together."""

    def __init__(self, app: ASGIApp, *, most: Mapping[Kind, int] = MAX_IN_FLIGHT) -> None:
        self._app = app
        self._most = most
        self._now = Counter[Hashable]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["path"] in UNCOUNTED:
            return await self._app(scope, receive, send)
        kind, key = kind_of(scope), self._counted_as(scope)
        if self._now[key] >= self._most[kind]:
            self._refuse(kind)
        self._now[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            subtract(self._now, key)
        return None

    def _counted_as(self, scope: Scope) -> Hashable:
        return kind_of(scope)

    def _refuse(self, _kind: Kind) -> NoReturn:
        raise Unavailable("too many requests at the same time: try again")


class ProjectShareLimit(InFlightLimit):
    """Limits concurrent requests of one project to its share of each kind.

    Runs behind `AuthMiddleware`; requests without a project share one share.
    """

    def __init__(self, app: ASGIApp, *, most: Mapping[Kind, int] = MAX_IN_FLIGHT) -> None:
        shares = {kind: max(1, int(number * MAX_PROJECT_SHARE)) for kind, number in most.items()}
        super().__init__(app, most=shares)

    @override
    def _counted_as(self, scope: Scope) -> Hashable:
        return kind_of(scope), project_of_request(scope)

    @override
    def _refuse(self, kind: Kind) -> NoReturn:
        refuse(kind)


KeyT = TypeVar("KeyT", bound=Hashable)


def subtract(counted: Counter[KeyT], key: KeyT, number: int = 1) -> None:
    """Subtract a number from the count of a key, and drop a count of 0."""
    # Projects without requests use no memory.
    counted[key] -= number
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


class WorkPlaces:
    """Has requests wait in line until they are worked on; streams and probes pass at once.

    Runs behind `BodyLimit`: a caller whose body is slow to arrive keeps no other one waiting.
    """

    def __init__(
        self, app: ASGIApp, *, admissions: Mapping[Kind, KindAdmission] = ADMISSIONS
    ) -> None:
        self._app = app
        self._lines = {
            kind: (admission, Line(admission.places, wait_s=admission.wait_s))
            for kind, admission in admissions.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["path"] in UNCOUNTED:
            return await self._app(scope, receive, send)
        kind, project = kind_of(scope), project_of_request(scope)
        admission, line = self._lines[kind]
        if admission.work_s is not None:
            return await self._attended(scope, receive, send, admission.work_s)
        if not await line.enter(project):
            refuse(kind)
        try:
            await self._app(scope, receive, send)
        finally:
            line.leave(project)
        return None

    async def _attended(self, scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
        """Answer a request, unless its caller hangs up before."""
        kind, project = kind_of(scope), project_of_request(scope)
        admission, line = self._lines[kind]
        body = b"" if scope["method"] in SAFE_METHODS else (await receive()).get("body", b"")
        caller = _Caller(receive)
        holds_place = False

        def leave() -> None:
            nonlocal holds_place
            if holds_place:
                holds_place = False
                line.leave(project)

        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                caller.look_away()
                if not admission.until_sent:
                    leave()
            await send(message)

        with CancelScope() as work:
            caller.watch(work.cancel)
            try:
                if not await line.enter(project):
                    refuse(kind)
                holds_place = True
                caller.budget = WorkBudget(seconds)
                with within(caller.budget), suppress(CallerGone):
                    await self._app(scope, given_once(body, caller.receive), watched_send)
            finally:
                caller.look_away()
                leave()


class _Caller:
    """The caller of a request whose body is here, and what happens when it hangs up."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None
        self.budget: WorkBudget | None = None

    def watch(self, hang_up: Callable[[], None]) -> None:
        """Call `hang_up`, and end the work in threads, when the caller disconnects."""
        self._watching = asyncio.create_task(self._wait_for_end(hang_up))

    def look_away(self) -> None:
        """The answer begins: from now on it is up to the route to notice."""
        if self._watching is not None:
            self._watching.cancel()

    async def receive(self) -> Message:
        """The caller's message behind its body, which is its end."""
        if self._watching is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.shield(self._watching)
        return await self._receive()

    async def _wait_for_end(self, hang_up: Callable[[], None]) -> None:
        await until_disconnect(self._receive)
        if self.budget is not None:
            self.budget.cancel()
        hang_up()


async def until_disconnect(receive: Receive) -> None:
    """Return when the caller has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_part(send: Send, body: bytes, within_s: float, *, more: bool = True) -> None:
    """Send a part of an answer's body; raises TimeoutError if its reader takes too long."""
    async with asyncio.timeout(within_s):
        await send({"type": "http.response.body", "body": body, "more_body": more})


def given_once(body: bytes, receive: Receive) -> Receive:
    """Receive this body first, as a whole, and then the messages of `receive`."""
    is_given = False

    async def receive_whole() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_whole


class Line:
    """Places of one kind: those taken, and by project the requests that wait, at most `wait_s`."""

    def __init__(self, num_places: int, *, wait_s: float = MAX_WAIT_S) -> None:
        self._num_places = num_places
        self._most_of_project = max(1, int(num_places * MAX_PROJECT_SHARE))
        self._wait_s = wait_s
        self._num_taken = 0
        self._taken: Counter[str | None] = Counter()
        self._waiting: OrderedDict[str | None, deque[asyncio.Future[bool]]] = OrderedDict()

    async def enter(self, project: str | None) -> bool:
        """Whether the request has got its place in time; `leave` gives it back."""
        has_room = self._taken[project] < self._most_of_project
        if self._num_taken < self._num_places and has_room and project not in self._waiting:
            self._take(project)
            return True
        return await self._wait(project)

    def leave(self, project: str | None) -> None:
        """Give a place back, to the next in line."""
        self._num_taken -= 1
        subtract(self._taken, project)
        if self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        """Let in as many as there are places for, one project after the other."""
        num_full = 0
        while num_full < len(self._waiting) and self._num_taken < self._num_places:
            project, line = self._waiting.popitem(last=False)
            if self._taken[project] < self._most_of_project:
                place = line.popleft()
                if not place.done():  # its request may be gone
                    self._take(project)
                    place.set_result(True)
                num_full = 0
            else:
                num_full += 1
            if line:
                self._waiting[project] = line

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
        line = self._waiting.get(project, deque())
        with suppress(ValueError):  # it has left the line
            line.remove(place)
        if not line:
            self._waiting.pop(project, None)
