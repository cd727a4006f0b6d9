import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from app.api.http.in_flight import (
    InFlightLimit,
    Kind,
    Line,
    ProjectShareLimit,
    PushLines,
    PushPace,
    kind_of,
)
from app.api.http.principal import Principal, attach_principal
from app.errors import Unavailable

pytestmark = pytest.mark.anyio

BATCH = ("POST", "/api/v1/jobs/llm-70b/ops")
REPORT = ("PUT", "/api/v1/jobs/llm-70b")
PAGE = ("GET", "/api/v1/fleet")


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        (*BATCH, Kind.BATCH),
        (*REPORT, Kind.REPORT),
        ("POST", "/api/v1/jobs/llm-70b/end", Kind.REPORT),
        ("POST", "/v1/traces", Kind.REPORT),
        (*PAGE, Kind.PERSON),
        ("GET", "/api/v1/jobs/llm-70b/ops", Kind.PERSON),
        ("POST", "/api/v1/alerts/0123456789abcdef/acknowledge", Kind.PERSON),
        ("POST", "/api/v1/receivers/ep_1/test", Kind.PERSON),
        ("GET", "/jobs/llm-70b", Kind.PERSON),
    ],
)
def test_requests_that_need_the_scope_ingest_are_pushes(method, path, kind):
    assert kind_of({"method": method, "path": path}) is kind


class HeldRoute:
    """Answers when released; counts the requests inside."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.inside = []

    async def __call__(self, scope, receive, send):
        self.inside.append(scope["path"])
        await self.go_on.wait()
        self.inside.remove(scope["path"])


async def no_body():
    return {"type": "http.request", "body": b"", "more_body": False}


async def ignore(message):
    pass


def asked(request, project="a"):
    method, path = request
    scope = {"type": "http", "method": method, "path": path}
    attach_principal(scope, Principal(project, frozenset(), None, "id", project))
    return scope


@asynccontextmanager
async def held(app, route, *requests):
    """These requests have begun, and end after the block."""
    tasks = []
    for request in requests:
        tasks.append(asyncio.create_task(app(asked(*request), no_body, ignore)))
        await turns()
    try:
        yield tasks
    finally:
        route.go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def turns():
    """All that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_kinds_of_requests_in_flight_are_limited_apart():
    route = HeldRoute()
    limited = InFlightLimit(route, most=dict.fromkeys(Kind, 1))
    async with held(limited, route, [BATCH], [PAGE]):
        assert len(route.inside) == 2
        for request in (BATCH, PAGE):
            with pytest.raises(Unavailable):
                await limited(asked(request), no_body, ignore)
    await limited(asked(BATCH), no_body, ignore)


async def test_project_gets_half_of_the_requests_of_each_kind():
    route = HeldRoute()
    limited = ProjectShareLimit(route, most=dict.fromkeys(Kind, 4))
    async with held(limited, route, [BATCH], [BATCH], [PAGE], [PAGE]):
        for request in (BATCH, PAGE):
            with pytest.raises(Unavailable, match="this project has too many requests"):
                await limited(asked(request), no_body, ignore)
        async with held(limited, route, [PAGE, "b"]):
            assert len(route.inside) == 5
    await limited(asked(PAGE), no_body, ignore)


async def test_pushes_on_all_places_and_in_line_keep_nobody_else_waiting():
    route = HeldRoute()
    lines = PushLines(route, batches=4, reports=2)
    async with held(lines, route, *[[BATCH]] * 4, [PAGE], [REPORT]):
        assert route.inside == [BATCH[1], BATCH[1], PAGE[1], REPORT[1]]


async def test_project_gets_half_of_the_places_and_the_rest_of_it_waits():
    route = HeldRoute()
    lines = PushLines(route, batches=4)
    async with held(lines, route, *[[BATCH]] * 3, [BATCH, "b"]) as tasks:
        assert len(route.inside) == 3
        assert not any(task.done() for task in tasks)
    assert [task.exception() for task in tasks] == [None] * 4


async def test_push_that_waits_too_long_is_refused_and_leaves_the_line():
    line = Line(1, wait_s=0.01)
    await line.enter("a")
    for _ in range(3):
        with pytest.raises(Unavailable, match="try again"):
            await line.enter("a")
    line.leave("a")
    await line.enter("a")


async def test_cancelled_push_leaves_its_place_to_the_next():
    line = Line(1)
    await line.enter("a")
    gone, next_one = (asyncio.create_task(line.enter("a")) for _ in range(2))
    await turns()
    gone.cancel()
    line.leave("a")
    await next_one
    line.leave("a")
    await line.enter("a")


async def test_projects_in_line_take_turns():
    line, order = Line(2), []

    async def push(project):
        await line.enter(project)
        order.append(project)
        await asyncio.sleep(0)
        line.leave(project)

    await line.enter("b")
    await line.enter("a")
    pushes = [asyncio.create_task(push(project)) for project in "aaaab"]
    await turns()
    line.leave("a")
    line.leave("b")
    await asyncio.gather(*pushes)
    assert "b" in order[:2]


async def test_a_page_overtakes_pushes_that_came_before_it():
    route = HeldRoute()
    app = PushPace(route, per_turn=2)
    batches = [asyncio.create_task(app(asked(BATCH), no_body, ignore)) for _ in range(7)]
    page = asyncio.create_task(app(asked(PAGE), no_body, ignore))
    begun = []
    for _ in range(6):
        await asyncio.sleep(0)
        begun.append(len(route.inside))
    assert begun[0] == 3  # two batches and the page
    assert PAGE[1] in route.inside
    assert max(after - before for before, after in pairwise(begun)) == 2
    assert begun[-1] == 8
    route.go_on.set()
    await asyncio.gather(*batches, page)


async def test_a_push_that_is_gone_takes_no_turn():
    route = HeldRoute()
    app = PushPace(route, per_turn=1)
    first, gone, last = (asyncio.create_task(app(asked(BATCH), no_body, ignore)) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    await turns()
    assert len(route.inside) == 2
    route.go_on.set()
    await asyncio.gather(first, last)
