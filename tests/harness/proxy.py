"""A TCP proxy with faults: latency, resets, half-closed connections, blackholes, lost answers."""

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
    awaited: bytes | None = None  # match in the last request, if its answer is to be dropped

    def reset(self) -> None:
        for end in (self.client, self.server):
            raw = end.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()


class Proxy:
    """Forwards to a server on loopback; faults apply to traffic after they are set.

    `dropped_answers` counts the answers that were swallowed.
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
        """Delay every chunk by this latency plus its bytes at this rate."""
        self._latency_s, self._bytes_per_s = latency_s, bytes_per_s

    def blackhole(self) -> None:
        """Accept bytes and forward none, like a firewall that drops packets."""
        self._is_blackhole = True

    def drop_answer_to(self, match: bytes, times: int = 1) -> None:
        """Forward the next requests with these bytes, drop the answer, reset the connection."""
        self._drops += [match] * times

    def heal(self) -> None:
        """Clear all faults; reset connections that were blackholed, since they have lost bytes."""
        was_blackhole, self._is_blackhole = self._is_blackhole, False
        self._latency_s, self._bytes_per_s = 0.0, None
        self._drops.clear()
        if was_blackhole:
            self.reset_all()

    def reset_all(self) -> None:
        """Reset every open connection."""
        self._call(self._each(_Connection.reset))

    def half_close_all(self) -> None:
        """Close the client-to-server direction of every connection."""
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
        tail = b""  # a match may be split over two chunks
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
            # Only an answer uses up a drop: a connection may end before it.
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
