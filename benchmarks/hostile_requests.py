"""Requests of every operation, each with one hostile part, answered in this process.

The application is called without a socket, so that all CPU that a request costs is here.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import FastAPI

from benchmarks.hostile_bodies import AnyFamily, bodies_of
from tests.harness.fuzz.input_families import MIN_COST_S, TEXTS, Growth

# Request lines and headers have at most 16 KiB.
MAX_QUERY_BYTES = 12_000
_TICK_S = 0.002
_CHART_NAMES = {"/windows/{window}/charts/": "workers", "/compare/": "steps"}


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """A request whose part, a parameter or the body, is a family's text of any size.

    `most` is the largest size of a family that counts items, of which a request has at most so
    many; the size of the others is in bytes.
    """

    name: str
    method: str
    path: str
    family: AnyFamily
    media: str | None = None
    parameter: str | None = None
    query: Mapping[str, str] | None = None
    most: int | None = None

    def scope(self, token: str, size: int) -> tuple[dict[str, Any], bytes]:
        """The ASGI scope and the body at a size in bytes."""
        text = self.family(size)
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
        query, body = dict(self.query or {}), b""
        if self.parameter is not None:
            query[self.parameter] = str(text)
        else:
            body = text.encode() if isinstance(text, str) else text
            headers.append((b"content-type", (self.media or "").encode()))
            headers.append((b"content-length", b"%d" % len(body)))
        raw_query = urlencode(query, safe="*?[]()/:,.-+! ").replace(" ", "+").encode()
        scope: dict[str, Any] = {"type": "http", "method": self.method, "path": self.path}
        scope |= {"raw_path": quote(self.path).encode(), "query_string": raw_query}
        scope |= {"scheme": "http", "root_path": "", "headers": headers}
        return {**scope, "server": ("localhost", 80), "client": ("127.0.0.1", 1)}, body


def requests_of(document: Mapping[str, Any]) -> Iterator[HostileRequest]:
    """Every query parameter and every body of an OpenAPI document, with every family."""
    for path, operations in document["paths"].items():
        if path in ("/api/v1/events", "/api/v1/pictures/{link}"):
            continue  # a stream that does not end, and a link that only we can sign
        for method, operation in operations.items():
            filled = _filled(path, operation)
            yield from _with_parameters(method.upper(), filled, operation)
            yield from _with_bodies(method.upper(), filled, operation, document)


def _filled(path: str, operation: Mapping[str, Any]) -> str:
    for each in operation.get("parameters", []):
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", _example(each))
    return path


def _example(parameter: Mapping[str, Any]) -> str:
    schema = parameter["schema"]
    choices = schema.get("examples") or schema.get("enum") or [schema.get("const", "1")]
    return str(choices[0])


def _with_parameters(
    method: str, path: str, operation: Mapping[str, Any]
) -> Iterator[HostileRequest]:
    asked = [each for each in operation.get("parameters", []) if each["in"] == "query"]
    for each in asked:
        needed = {
            other["name"]: _example(other)
            for other in asked
            if other is not each and other.get("required")
        }
        for family, text in TEXTS.items():
            name = f"{operation['operationId']} {each['name']}: {family}"
            yield HostileRequest(name, method, path, text, parameter=each["name"], query=needed)


def _with_bodies(
    method: str, path: str, operation: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[HostileRequest]:
    for each in bodies_of(operation, document):
        name = f"{operation['operationId']} {each.name}"
        yield HostileRequest(
            name, method, path, each.family, each.media, query=each.query, most=each.most
        )


class InProcessApi:
    """Answers requests one after the other, and measures what each costs."""

    def __init__(self, app: FastAPI, token: str) -> None:
        self._app = app
        self._token = token
        self.statuses: Counter[int] = Counter()

    async def growth(self, request: HostileRequest, size: int) -> Growth:
        """Figures of a request whose part is `size`, twice and four times as large."""
        third_s, blocked_s = await self._answer(request, 4 * size)
        if third_s < MIN_COST_S:
            return Growth((third_s / 4, third_s / 2, third_s), blocked_s)
        first_s, _ = await self._answer(request, size)
        second_s, _ = await self._answer(request, 2 * size)
        return Growth((first_s, second_s, third_s), blocked_s)

    async def _answer(self, request: HostileRequest, size: int) -> tuple[float, float]:
        """CPU seconds of the answer, and the longest time that the event loop was held up."""
        scope, body = request.scope(self._token, size)
        is_sent = False

        async def receive() -> dict[str, Any]:
            nonlocal is_sent
            if is_sent:
                await asyncio.get_running_loop().create_future()
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses[message["status"]] += 1
            await asyncio.sleep(0)

        clock = _LoopClock()
        watching = asyncio.create_task(clock.run())
        await asyncio.sleep(0)
        began_s = time.process_time()
        await self._app(scope, receive, send)
        cost_s = time.process_time() - began_s
        await asyncio.sleep(2 * _TICK_S)
        watching.cancel()
        return cost_s, clock.longest_s


class _LoopClock:
    """The longest turn of the event loop: CPU seconds of its thread between two ticks.

    Not by the clock on the wall: on a busy machine other processes take their time, too.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.thread_time()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s
