"""What becomes of a body that is too large, on a real socket."""

import asyncio
import socket

import pytest
import uvicorn

from app.api.http.bodies import BodyLimit
from app.api.http.connection import BoundedHeaders
from app.api.http.middleware import ErrorMiddleware

pytestmark = pytest.mark.anyio


async def test_body_over_the_limit_is_drained_and_its_caller_finds_the_413():
    """A caller on a real socket that reads nothing until it has sent all of its body."""

    async def route(scope, receive, send):
        raise AssertionError("the route is called")

    limited = ErrorMiddleware(BodyLimit(route, max_bytes=1 << 16))
    config = uvicorn.Config(limited, lifespan="off", ws="none", http=BoundedHeaders)
    server, listening = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([listening]))

    def status(headers, parts):
        with socket.create_connection(listening.getsockname(), timeout=60) as caller:
            caller.sendall(b"POST /api/v1/jobs/a/ops HTTP/1.1\r\nHost: localhost\r\n" + headers)
            for part in parts:
                caller.sendall(part)
            return caller.recv(1 << 16)

    size = 16 << 20
    for headers, parts in (
        (b"Content-Length: %d\r\n\r\n" % size, [bytes(1 << 20)] * 16),
        (
            b"Transfer-Encoding: chunked\r\n\r\n",
            [b"100000\r\n" + bytes(1 << 20) + b"\r\n"] * 16 + [b"0\r\n\r\n"],
        ),
        # It would send only when told to.
        (b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % size, []),
    ):
        answer = await asyncio.to_thread(status, headers, parts)
        assert answer.startswith(b"HTTP/1.1 413")
    server.should_exit = True
    await serving
