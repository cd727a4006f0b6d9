"""Places for requests that are worked on: who has one, who waits, and for how long one is kept.

CPU is a limit like any other: parsing and computing hold the interpreter, and each thread of it
makes the event loop wait. So each kind of request has few places, a project has at most half of
them, and the rest waits in line by project in turn. Whoever gets no place in time is told so. Work
for a caller that has hung up is given up, and so is work over its time (`app.work_budget`).
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from anyio import CancelScope
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http.auth import SAFE_METHODS
from app.api.http.in_flight import MAX_PROJECT_SHARE, UNCOUNTED, refuse, subtract_one
from app.api.http.principal import project_of_request
from app.api.http.request_kinds import ADMISSIONS, MAX_WAIT_S, Kind, KindAdmission, kind_of
from app.errors import CallerGone
from app.work_budget import WorkBudget, within


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
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            return await self._app(scope, receive, send)
        kind, project = kind_of(scope), project_of_request(scope)
        admission, line = self._lines[kind]
        if admission.work_s is not None:
            return await self._attended(scope, receive, send, admission.work_s)
        await self._enter(line, kind, project)
        try:
            await self._app(scope, receive, send)
        finally:
            line.leave(project)
        return None

    async def _attended(self, scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
        """Answer a request, unless its caller hangs up before."""
        kind, project = kind_of(scope), project_of_request(scope)
        admission, line = self._lines[kind]
        caller = _Caller(receive, await _whole_body(scope, receive))
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
                await self._enter(line, kind, project)
                holds_place = True
                caller.budget = WorkBudget(seconds)
                with within(caller.budget), suppress(CallerGone):
                    await self._app(scope, caller.receive, watched_send)
            finally:
                caller.look_away()
                leave()

    async def _enter(self, line: "Line", kind: Kind, project: str | None) -> None:
        if not await line.enter(project):
            refuse(kind)


class _Caller:
    """The caller of a request whose body is here, and what happens when it hangs up."""

    def __init__(self, receive: Receive, body: Message) -> None:
        self._receive = receive
        self._body: Message | None = body
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
        """The next message of the caller: its body, and then its end."""
        if self._body is not None:
            body, self._body = self._body, None
            return body
        if self._watching is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.shield(self._watching)
        return await self._receive()

    async def _wait_for_end(self, hang_up: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self.budget is not None:
            self.budget.cancel()
        hang_up()


async def _whole_body(scope: Scope, receive: Receive) -> Message:
    """The body that `BodyLimit` has read; none for methods that have none."""
    if scope["method"] in SAFE_METHODS:
        return {"type": "http.request", "body": b"", "more_body": False}
    return await receive()


class Line:
    """Places of one kind: who has one, and by project who waits for one, at most `wait_s`."""

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
        subtract_one(self._taken, project)
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
