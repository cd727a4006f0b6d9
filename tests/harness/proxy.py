"""A TCP proxy that makes trouble: slow, cut off, half closed, silent, or losing an answer."""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from tests.harness.processes import free_port

CHUNK_BYTES = 1 << 16
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 s


@dataclass(eq=False)
class _Connection:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    awaited: bytes | None = None  # what the last request had in it, if its answer may be swallowed

    def reset(self) -> None:
        for end in (self.client, self.server):
            raw = end.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()


class Proxy:
    """Stands before a server on loopback; trouble set here meets what comes after.

    `fired` counts the answers that were swallowed.
    """

    def __init__(self, to_port: int) -> None:
        self.port = free_port()
        self.dropped_answers = 0
        self._to_port = to_port
        self._latency_s = 0.0
        self._bytes_per_s: float | None = None
        self._is_blackhole = False
        self._drops: list[bytes] = []
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def slow(self, latency_s: float, bytes_per_s: float | None = None) -> None:
        """Every chunk takes this long, and as long again as its bytes need."""
        self._latency_s, self._bytes_per_s = latency_s, bytes_per_s

    def blackhole(self) -> None:
        """Take everything and hand on nothing, as behind a firewall that drops packets."""
        self._is_blackhole = True

    def drop_answer_to(self, match: bytes, times: int = 1) -> None:
        """Hand on the next requests with these bytes, swallow the answer and reset the line."""
        self._drops += [match] * times

    def heal(self) -> None:
        """No more trouble; lines that were silenced are cut, since bytes are gone from them."""
        was_blackhole, self._is_blackhole = self._is_blackhole, False
        self._latency_s, self._bytes_per_s = 0.0, None
        self._drops.clear()
        if was_blackhole:
            self.reset_all()

    def reset_all(self) -> None:
        """Cut every open line by RST."""
        self._call(self._each(_Connection.reset))

    def half_close_all(self) -> None:
        """The server hears that its callers will say no more; they hear nothing."""
        self._call(self._each(lambda connection: connection.server.write_eof()))

    def close(self) -> None:
        """End the proxy."""
        self.reset_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, action: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result()

    async def _each(self, action: Any) -> None:
        for connection in list(self._connections):
            if not connection.server.is_closing():
                action(connection)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        serving = asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
        server = self._loop.run_until_complete(serving)
        started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, onward = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, onward)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._requests(reader, connection), self._answers(back, connection)
            )
        except (OSError, asyncio.CancelledError):
            connection.reset()
        finally:
            self._connections.discard(connection)
            writer.close()
            onward.close()

    async def _requests(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        tail = b""  # what is looked for may be cut in two
        while chunk := await reader.read(CHUNK_BYTES):
            seen = tail + chunk
            tail = seen[-64:]
            for match in self._drops:
                if match in seen:
                    connection.awaited, tail = match, b""
                    break
            await self._forward(chunk, connection.server)
        if not connection.server.is_closing():
            connection.server.write_eof()

    async def _answers(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            # Only an answer uses a drop up: a line may end before it has one.
            if connection.awaited in self._drops:
                self._drops.remove(connection.awaited)
                self.dropped_answers += 1
                raise ConnectionResetError
            connection.awaited = None
            await self._forward(chunk, connection.client)
        if not connection.client.is_closing():
            connection.client.write_eof()

    async def _forward(self, chunk: bytes, to: asyncio.StreamWriter) -> None:
        wait_s = self._latency_s
        if self._bytes_per_s is not None:
            wait_s += len(chunk) / self._bytes_per_s
        if wait_s:
            await asyncio.sleep(wait_s)
        if not self._is_blackhole:
            to.write(chunk)
            await to.drain()
