"""Downloads generated while they are sent, with all kinds of readers."""

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import threading

import pytest
import uvicorn

from app.api.http import connection
from app.api.http.connection import BoundedHeaders
from app.api.routes.windows.traces import Download

pytestmark = pytest.mark.anyio

SCOPE = {"type": "http", "method": "GET", "path": "/file", "headers": []}
REQUEST = b"GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Pieces:
    """A generator of these pieces; `is_ended` once it is closed."""

    def __init__(self, *pieces, endless=False):
        self.is_ended = False
        self._pieces = itertools.cycle(pieces) if endless else pieces

    def __iter__(self):
        try:
            for piece in self._pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece() if callable(piece) else piece
        finally:
            self.is_ended = True


class Reader:
    """A caller that reads `takes` messages and then stalls until it disconnects."""

    def __init__(self, takes=1000):
        self.messages = []
        self.is_stuck = asyncio.Event()
        self.disconnected = asyncio.Event()
        self._takes = takes

    async def receive(self):
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        # As uvicorn does: messages to a disconnected caller are dropped.
        if len(self.messages) == self._takes:
            self.is_stuck.set()
            await self.disconnected.wait()
            return
        self.messages.append(message)

    @property
    def body(self):
        return b"".join(each["body"] for each in self.messages[1:])


def file(made, **limits):
    return Download(iter(made), name="a.gz", media_type="application/gzip", **limits)


async def test_file_arrives_whole_in_small_chunks():
    pieces, reader = [b"a" * 200_000, b"b", b"c" * 70_000], Reader()
    await file(Pieces(*pieces))(SCOPE, reader.receive, reader.send)
    assert reader.body == b"".join(pieces)
    assert max(len(each["body"]) for each in reader.messages[1:]) == 65_536
    assert [each["more_body"] for each in reader.messages[-2:]] == [True, False]
    headers = dict(reader.messages[0]["headers"])
    assert headers[b"content-disposition"] == b'attachment; filename="a.gz"'
    assert b"content-length" not in headers


@pytest.mark.parametrize(("pieces", "num_messages"), [((), 0), ((b"a",), 2)])
async def test_error_in_the_first_piece_is_raised(pieces, num_messages):
    reader = Reader()
    with pytest.raises(ZeroDivisionError):
        await file(Pieces(*pieces, ZeroDivisionError()))(SCOPE, reader.receive, reader.send)
    assert len(reader.messages) == num_messages


@pytest.mark.parametrize("end", ["hang up", "cancel"])
async def test_running_thread_is_awaited_before_the_generator_closes(end):
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert go_on.wait(60)
        return b"b"

    made, reader = Pieces(b"a", slow, endless=True), Reader()
    answer = asyncio.create_task(file(made)(SCOPE, reader.receive, reader.send))
    await asyncio.to_thread(begun.wait, 60)
    reader.disconnected.set() if end == "hang up" else answer.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not answer.done()
    go_on.set()
    await asyncio.wait([answer])
    assert answer.cancelled() == (end == "cancel")
    assert made.is_ended


async def test_stalled_reader_ends_the_download_after_the_timeout():
    made, reader = Pieces(b"a", endless=True), Reader(3)
    await file(made, send_within_s=0.01)(SCOPE, reader.receive, reader.send)
    assert made.is_ended


async def test_slow_reader_is_aborted_after_the_total_timeout():
    made, reader = Pieces(b"a", endless=True), Reader(10**9)
    await file(made, whole_within_s=0.05)(SCOPE, reader.receive, reader.send)
    assert made.is_ended


class Server:
    """A real server of one endless file; `answered` once a response has ended."""

    def __init__(self, **limits):
        self.answered = asyncio.Event()
        self._limits = limits
        config = uvicorn.Config(
            self._answer,
            http=BoundedHeaders,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
        )
        self._server = uvicorn.Server(config)

    async def __aenter__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._serving = asyncio.create_task(self._server.serve([self._listening]))
        return self

    async def __aexit__(self, *_):
        self._server.should_exit = True
        async with asyncio.timeout(60):
            await self._serving

    async def caller(self):
        """A caller that has read the beginning of the file."""
        caller = socket.create_connection(self._listening.getsockname())
        caller.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(caller, REQUEST)
        assert (await received(caller)).startswith(b"HTTP/1.1 200")
        return caller

    async def _answer(self, scope, receive, send):
        try:
            made = Pieces(bytes(100_000), endless=True)
            await file(made, **self._limits)(scope, receive, send)
        finally:
            self.answered.set()


async def received(caller):
    return await asyncio.get_running_loop().sock_recv(caller, 65_536)


async def test_disconnect_ends_the_download_without_garbage_collection():
    gc.disable()
    try:
        async with Server() as server:
            for _ in range(3):
                server.answered.clear()
                caller = await server.caller()
                caller.close()
                await server.answered.wait()
    finally:
        gc.enable()


async def test_connection_of_a_stalled_reader_is_aborted(caplog):
    async with Server(send_within_s=0.05) as server:
        caller = await server.caller()
        await server.answered.wait()
        with contextlib.suppress(ConnectionError):
            while await received(caller):
                pass
        caller.close()
    assert errors(caplog) == []


async def test_server_stops_despite_a_stalled_reader(caplog, monkeypatch):
    monkeypatch.setattr(connection, "SENT_WITHIN_S", 0.01)
    async with Server() as server:
        caller = await server.caller()
    assert server.answered.is_set()
    assert errors(caplog) == []
    caller.close()


def errors(caplog):
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
