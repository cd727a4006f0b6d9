import asyncio
from itertools import pairwise

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.middleware import Middleware

from app.api.http.request_kinds import Kind
from app.api.http.work_places import InFlightLimit, ProjectShareLimit, RequestPace
from app.errors import NoPlace, Unavailable
from tests.api.http.held_requests import BATCH, PAGE, HeldRoute, asked, held, ignore, no_body, turns
from tests.e2e.stack import free_port

pytestmark = pytest.mark.anyio


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
    app = RequestPace(route, pushes_per_turn=2)
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


async def test_scrapes_take_turns_and_probes_begin_at_once():
    route = HeldRoute()
    app = RequestPace(route, others_per_turn=1)
    tasks = [
        asyncio.create_task(app(asked(("GET", path)), no_body(), ignore))
        for path in ["/metrics"] * 3 + ["/healthz", "/readyz"]
    ]
    await asyncio.sleep(0)
    assert sorted(route.inside) == ["/healthz", "/metrics", "/readyz"]
    route.go_on.set()
    await asyncio.gather(*tasks)


async def test_a_push_that_is_gone_takes_no_turn():
    route = HeldRoute()
    app = RequestPace(route, pushes_per_turn=1, others_per_turn=1)
    first, gone, last = (
        asyncio.create_task(app(asked(BATCH), no_body(), ignore)) for _ in range(3)
    )
    await asyncio.sleep(0)
    gone.cancel()
    await turns()
    assert len(route.inside) == 2
    route.go_on.set()
    await asyncio.gather(first, last)


async def test_callers_begin_in_turn_however_many_requests_one_of_them_has():
    order = []

    async def route(scope, receive, send):
        order.append(dict(scope["headers"])[b"authorization"])

    app = RequestPace(route, pushes_per_turn=1, others_per_turn=1)
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
    app = RequestPace(route, pushes_per_turn=1, others_per_turn=1)

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


async def test_uvicorn_tells_beside_receive_whether_the_caller_has_gone():
    told = []

    async def route(scope, receive, send):
        if scope["type"] == "http":
            told.append(receive.__self__.disconnected)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    # FastAPI and Starlette put middleware of their own around ours.
    app = FastAPI(middleware=[Middleware(lambda app: route)])
    config = uvicorn.Config(app, port=free_port(), lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    reader, writer = await asyncio.open_connection("127.0.0.1", config.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await server.shutdown()
    assert told == [False]
