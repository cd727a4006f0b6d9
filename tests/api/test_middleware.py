import asyncio

import pytest

from app.api.bodies import Bodies, FairShares, InFlight
from app.api.middleware import Refusals, SecurityHeaders, host_name
from app.api.principal import Principal, attach
from app.errors import BadRequest, TooLarge, TooSlow, Unavailable, UnsupportedMedia

pytestmark = pytest.mark.anyio


def scope(method="POST", path="/api/v1/x", **headers):
    listed = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "headers": listed, "scheme": "http"}


def chunks(*parts, last=True):
    """A receive that gives these parts of a body."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if last:
        messages[-1]["more_body"] = False
    waiting = iter(messages)

    async def receive():
        return next(waiting, {"type": "http.disconnect"})

    return receive


class Route:
    """Remembers what it was asked, and answers 200."""

    def __init__(self):
        self.bodies = []

    async def __call__(self, scope, receive, send):
        message = await receive()
        self.bodies.append(message.get("body"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def ignore(message):
    pass


async def test_a_body_in_parts_arrives_whole():
    route = Route()
    await Bodies(route, max_bytes=10)(scope(), chunks(b"ab", b"", b"cd"), ignore)
    assert route.bodies == [b"abcd"]


async def test_a_caller_that_hangs_up_in_the_middle_reaches_no_route():
    route = Route()
    await Bodies(route, max_bytes=10)(scope(), chunks(b"ab", last=False), ignore)
    assert route.bodies == []


async def test_a_body_that_does_not_come_is_waited_for_only_so_long():
    never = asyncio.Event()

    async def receive():
        await never.wait()

    with pytest.raises(TooSlow):
        await Bodies(Route(), max_bytes=10, within_s=0.01)(scope(), receive, ignore)


async def test_a_body_over_the_limit_is_refused_as_it_comes():
    with pytest.raises(TooLarge):
        await Bodies(Route(), max_bytes=3)(scope(), chunks(b"ab", b"cd"), ignore)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"content_length": "4"}, TooLarge),
        ({"content_length": "9" * 5000}, TooLarge),
        ({"content_length": "-1"}, BadRequest),
        ({"content_length": "four"}, BadRequest),
        ({"content_encoding": "zstd"}, UnsupportedMedia),
        ({"content_encoding": "identity, gzip"}, UnsupportedMedia),
    ],
)
async def test_headers_of_a_body_are_looked_at_before_it_is_read(headers, error):
    async def receive():
        raise AssertionError("the body was read")

    with pytest.raises(error):
        await Bodies(Route(), max_bytes=3)(scope(**headers), receive, ignore)


async def test_a_body_that_only_trickles_in_is_not_waited_for():
    never, parts = asyncio.Event(), iter([b"a", b"b"])

    async def receive():
        if (part := next(parts, None)) is None:
            await never.wait()
        return {"type": "http.request", "body": part, "more_body": True}

    with pytest.raises(TooSlow, match="less than 1000 bytes a second"):
        await Bodies(Route(), max_bytes=10, slow_for_s=0.01)(scope(), receive, ignore)


async def test_all_bodies_together_have_a_limit_too_and_give_their_room_back():
    async def slow(scope, receive, send):
        with pytest.raises(Unavailable, match="too many bytes on their way at the same"):
            await bodies(of_project("b"), chunks(b"abcd"), ignore)

    bodies = Bodies(slow, max_bytes=10, max_bytes_in_flight=6)
    for _ in range(2):
        await bodies(of_project("a"), chunks(b"abc"), ignore)


async def test_one_request_too_many_is_refused_while_the_others_run():
    go_on, is_in = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        is_in.set()
        await go_on.wait()

    limited = InFlight(slow, most=1)
    first = asyncio.create_task(limited(scope(), chunks(b""), ignore))
    await is_in.wait()
    with pytest.raises(Unavailable):
        await limited(scope(), chunks(b""), ignore)
    go_on.set()
    await first
    await limited(scope(), chunks(b""), ignore)


def of_project(name):
    """A request that the guard has let in."""
    asked = scope()
    attach(asked, Principal(name, frozenset(), None, "id", name))
    return asked


async def test_a_project_takes_half_of_the_places_and_leaves_the_others():
    go_on, is_in = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(scope, receive, send):
        is_in.release()
        await go_on.wait()

    shares = FairShares(slow, most=4)
    running = [asyncio.create_task(shares(of_project("a"), chunks(b""), ignore)) for _ in range(2)]
    for _ in running:
        await is_in.acquire()
    with pytest.raises(Unavailable, match="this project has too many requests"):
        await shares(of_project("a"), chunks(b""), ignore)
    running.append(asyncio.create_task(shares(of_project("b"), chunks(b""), ignore)))
    await is_in.acquire()
    go_on.set()
    await asyncio.gather(*running)
    await shares(of_project("a"), chunks(b""), ignore)


async def test_a_project_has_half_of_the_bytes_in_flight():
    bodies = Bodies(Route(), max_bytes=10, max_bytes_in_flight=6)
    with pytest.raises(Unavailable, match="this project has too many bytes"):
        await bodies(of_project("a"), chunks(b"abcd"), ignore)
    await bodies(of_project("a"), chunks(b"abc"), ignore)


async def test_what_breaks_is_a_500_that_tells_nothing():
    async def broken(scope, receive, send):
        raise RuntimeError("the password is hunter2")

    sent = []

    async def send(message):
        sent.append(message)

    await SecurityHeaders(Refusals(broken))(scope(), chunks(b""), send)
    assert sent[0]["status"] == 500
    assert dict(sent[0]["headers"])[b"content-type"] == b"application/problem+json"
    assert b"hunter2" not in sent[1]["body"]


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("a.test", "a.test"),
        ("A.test:80", "a.test"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("", ""),
        ("a.test:", None),
        ("a.test:x", None),
        ("a.test:80:80", None),
        ("[::1]x", None),
        ("::1", None),
    ],
)
def test_a_host_is_compared_by_name(header, name):
    assert host_name(header) == name
