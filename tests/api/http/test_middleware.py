import asyncio

import pytest

from app.api.http.bodies import BodyLimit
from app.api.http.middleware import ErrorMiddleware, HeaderMiddleware, host_name
from app.api.http.principal import Principal, attach_principal
from app.errors import BadRequest, TooLarge, TooSlow, Unavailable, UnsupportedMedia

pytestmark = pytest.mark.anyio


def scope(method="POST", path="/api/v1/x", **headers):
    listed = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "headers": listed, "scheme": "http"}


def chunks(*parts, last=True):
    """A receive function with these parts of a body."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if last:
        messages[-1]["more_body"] = False
    waiting = iter(messages)

    async def receive():
        return next(waiting, {"type": "http.disconnect"})

    return receive


class Route:
    """Records its requests and answers 200."""

    def __init__(self):
        self.bodies = []

    async def __call__(self, scope, receive, send):
        message = await receive()
        self.bodies.append(message.get("body"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def ignore(message):
    pass


async def test_disconnect_during_the_body_calls_no_route():
    route = Route()
    await BodyLimit(route, max_bytes=10)(scope(), chunks(b"ab", last=False), ignore)
    assert route.bodies == []


async def test_missing_body_times_out():
    never = asyncio.Event()

    async def receive():
        await never.wait()

    with pytest.raises(TooSlow):
        await BodyLimit(Route(), max_bytes=10, within_s=0.01)(scope(), receive, ignore)


async def test_body_over_the_limit_is_refused_while_it_arrives():
    with pytest.raises(TooLarge):
        await BodyLimit(Route(), max_bytes=3)(scope(), chunks(b"ab", b"cd"), ignore)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"content_length": "4", "expect": "100-continue"}, TooLarge),
        ({"content_length": "9" * 5000, "expect": "100-continue"}, TooLarge),
        ({"content_length": "-1"}, BadRequest),
        ({"content_length": "four"}, BadRequest),
        ({"content_encoding": "zstd"}, UnsupportedMedia),
        ({"content_encoding": "identity, gzip"}, UnsupportedMedia),
    ],
)
async def test_body_headers_are_checked_before_the_body_is_read(headers, error):
    async def receive():
        raise AssertionError("the body was read")

    with pytest.raises(error):
        await BodyLimit(Route(), max_bytes=3)(scope(**headers), receive, ignore)


async def test_slow_body_is_refused():
    never, parts = asyncio.Event(), iter([b"a", b"b"])

    async def receive():
        if (part := next(parts, None)) is None:
            await never.wait()
        return {"type": "http.request", "body": part, "more_body": True}

    with pytest.raises(TooSlow, match="less than 1000 bytes a second"):
        await BodyLimit(Route(), max_bytes=10, slow_for_s=0.01)(scope(), receive, ignore)


async def test_bytes_in_flight_are_limited_and_released():
    async def slow(scope, receive, send):
        with pytest.raises(Unavailable, match="too many bytes in flight"):
            await bodies(of_project("b"), chunks(b"abcd"), ignore)

    bodies = BodyLimit(slow, max_bytes=10, max_bytes_in_flight=6)
    for _ in range(2):
        await bodies(of_project("a"), chunks(b"abc"), ignore)


def of_project(name):
    """A request that passed the guard."""
    asked = scope(path="/api/v1/jobs/llm-70b/ops")
    attach_principal(asked, Principal(name, frozenset(), None, "id", name))
    return asked


async def test_project_gets_half_of_the_bytes_in_flight():
    bodies = BodyLimit(Route(), max_bytes=10, max_bytes_in_flight=6)
    with pytest.raises(Unavailable, match="this project has too many bytes"):
        await bodies(of_project("a"), chunks(b"abcd"), ignore)
    await bodies(of_project("a"), chunks(b"abc"), ignore)


async def test_bytes_of_pushes_leave_room_for_those_of_people():
    async def slow(asked, receive, send):
        if asked["path"].endswith("/ops"):
            message = scope(path="/api/v1/silences")
            attach_principal(message, Principal("a", frozenset(), None, "id", "a"))
            await bodies(message, chunks(b"abc"), ignore)

    bodies = BodyLimit(slow, max_bytes=99, max_bytes_in_flight=40)
    await bodies(of_project("a"), chunks(bytes(20)), ignore)


async def test_exception_becomes_a_500_without_details():
    async def broken(scope, receive, send):
        raise RuntimeError("the password is hunter2")

    sent = []

    async def send(message):
        sent.append(message)

    await HeaderMiddleware(ErrorMiddleware(broken))(scope(), chunks(b""), send)
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
def test_host_header_is_compared_by_name(header, name):
    assert host_name(header) == name
