import asyncio
from itertools import pairwise

import pytest

from app.api.http.in_flight import InFlightLimit, ProjectShareLimit, RequestPace
from app.api.http.request_kinds import Kind
from app.errors import NoPlace, Unavailable
from tests.api.http.held_requests import BATCH, PAGE, HeldRoute, asked, held, ignore, no_body, turns

pytestmark = pytest.mark.anyio

MANY_AND_ONE = [b"many"] * 6 + [b"one"]


async def test_kinds_of_requests_in_flight_are_limited_apart():
    route = HeldRoute()
    limited = InFlightLimit(route, most=dict.fromkeys(Kind, 1))
    async with held(limited, route, [BATCH], [PAGE]):
        assert len(route.inside) == 2
        for request in (BATCH, PAGE):
            with pytest.raises(Unavailable):
                await limited(asked(request), no_body(), ignore)
    await limited(asked(BATCH), no_body(), ignore)


async def test_project_gets_half_of_the_requests_of_each_kind():
    route = HeldRoute()
    limited = ProjectShareLimit(route, most=dict.fromkeys(Kind, 4))
    async with held(limited, route, [BATCH], [BATCH], [PAGE], [PAGE]):
        for request, refusal in ((BATCH, Unavailable), (PAGE, NoPlace)):
            with pytest.raises(refusal, match="this project has too many requests"):
                await limited(asked(request), no_body(), ignore)
        async with held(limited, route, [PAGE, "b"]):
            assert len(route.inside) == 5
    await limited(asked(PAGE), no_body(), ignore)


async def test_a_page_overtakes_pushes_that_came_before_it():
    route = HeldRoute()
    app = RequestPace(route, per_turn=2)
    batches = [asyncio.create_task(app(asked(BATCH), no_body(), ignore)) for _ in range(7)]
    page = asyncio.create_task(app(asked(PAGE), no_body(), ignore))
    begun = []
    for _ in range(6):
        await asyncio.sleep(0)
        begun.append(len(route.inside))
    assert begun[0] == 3  # two batches and the page
    assert "/api/v1/fleet" in route.inside
    assert max(after - before for before, after in pairwise(begun)) == 2
    assert begun[-1] == 8
    route.go_on.set()
    await asyncio.gather(*batches, page)


async def test_a_push_that_is_gone_takes_no_turn():
    route = HeldRoute()
    app = RequestPace(route, per_turn=1)
    first, gone, last = (
        asyncio.create_task(app(asked(BATCH), no_body(), ignore)) for _ in range(3)
    )
    await asyncio.sleep(0)
    gone.cancel()
    await turns()
    assert len(route.inside) == 2
    route.go_on.set()
    await asyncio.gather(first, last)


async def test_a_push_overtakes_requests_that_came_before_it():
    route = HeldRoute()
    app = RequestPace(route, per_turn=1)
    pages = [asyncio.create_task(app(asked(PAGE), no_body(), ignore)) for _ in range(5)]
    batch = asyncio.create_task(app(asked(BATCH), no_body(), ignore))
    await asyncio.sleep(0)
    assert len(route.inside) == 2
    assert "/api/v1/fleet" in route.inside
    route.go_on.set()
    await asyncio.gather(*pages, batch)


async def test_callers_begin_in_turn_however_many_requests_one_of_them_has():
    order = []

    async def route(scope, receive, send):
        order.append(dict(scope["headers"])[b"authorization"])

    app = RequestPace(route, per_turn=1)
    tasks = [
        asyncio.create_task(
            app({**asked(PAGE), "headers": [(b"authorization", name)]}, no_body(), ignore)
        )
        for name in [b"many"] * 6 + [b"one"]
    ]
    await asyncio.gather(*tasks)
    assert order.index(b"one") <= 2


async def test_a_request_whose_caller_hung_up_while_it_waited_is_not_begun():
    route = HeldRoute()
    app = RequestPace(route, per_turn=1)

    class Cycle:
        disconnected = False

        async def receive(self):
            return {"type": "http.request", "body": b"", "more_body": False}

    cycle = Cycle()
    first = asyncio.create_task(app(asked(PAGE), no_body(), ignore))
    waiting = asyncio.create_task(app(asked(PAGE), cycle.receive, ignore))
    cycle.disconnected = True
    await turns()
    assert waiting.done()
    assert len(route.inside) == 1
    route.go_on.set()
    await first
