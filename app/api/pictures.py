"""Every chart as a picture, too: for who asks for image/png, or puts .png after its address."""

import asyncio
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import header
from app.charts.figure import Figure
from app.charts.theme import LIGHT, THEMES, Theme
from app.errors import InvalidRequest, TooManyRequests

PNG = "image/png"
_CHART = re.compile(r"(?P<path>/api/v1/(?:.+/)?charts/[a-z][a-z-]*)(?P<suffix>\.png)?")
_WIDTHS_PX = range(320, 2001)
_USUAL_WIDTH_PX = 960
# Each takes a browser and a second or two of a core.
_MOST_WAITING = 8

Draw = Callable[..., bytes]


class Pictures:
    """Draws what a chart's route answers, one picture at a time; leaves everything else alone.

    `draw` makes a PNG of a figure, a theme and `width_px`.
    """

    def __init__(self, app: ASGIApp, *, draw: Draw) -> None:
        self._app = app
        self._draw = draw
        self._one_at_a_time = asyncio.Semaphore(1)
        self._num_waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = _wanted_chart(scope)
        if path is None:
            return await self._app(scope, receive, send)
        width_px = _width_px(scope)
        answered = Answered()
        await self._app(_without_picture(scope, path), receive, answered.take)
        if answered.status != 200:
            return await answered.hand_on(send)
        picture = await self._drawn(json.loads(answered.body), _theme(scope), width_px)
        return await Response(picture, media_type=PNG)(scope, receive, send)

    async def _drawn(self, figure: Figure, theme: Theme, width_px: int) -> bytes:
        if self._num_waiting >= _MOST_WAITING:
            raise TooManyRequests("too many pictures are being drawn", retry_after_s=5)
        self._num_waiting += 1
        try:
            async with self._one_at_a_time:
                work = partial(self._draw, figure, theme, width_px=width_px)
                return await run_in_threadpool(work)
        finally:
            self._num_waiting -= 1


class Answered:
    """What a route answered, kept until it is known what becomes of it."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    async def take(self, message: Message) -> None:
        """Keep one part of it, as if it were sent."""
        self._messages.append(message)

    async def hand_on(self, send: Send) -> None:
        """Send all of it."""
        for message in self._messages:
            await send(message)

    @property
    def status(self) -> int:
        """HTTP's."""
        return int(self._messages[0]["status"]) if self._messages else 500

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(message.get("body", b"") for message in self._messages)


def _wanted_chart(scope: Scope) -> str | None:
    """The address of the chart that is asked for as a picture."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    found = _CHART.fullmatch(scope["path"])
    if found is None or not (found["suffix"] or _prefers_png(scope)):
        return None
    return found["path"]


def _without_picture(scope: Scope, path: str) -> Scope:
    """The same request for the chart itself."""
    headers = [pair for pair in scope["headers"] if pair[0] != b"accept"]
    return {**scope, "path": path, "raw_path": path.encode(), "headers": headers}


def _prefers_png(scope: Scope) -> bool:
    # Before all else: a browser that is sent to a chart's address takes pictures, too.
    accept = (header(scope, b"accept") or b"").decode("latin-1").lower()
    return accept.split(",")[0].split(";")[0].strip() == PNG


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _theme(scope: Scope) -> Theme:
    return THEMES.get(_query(scope).get("theme", [LIGHT.name])[0], LIGHT)


def _width_px(scope: Scope) -> int:
    text = _query(scope).get("width", [str(_USUAL_WIDTH_PX)])[0]
    is_number = text.isascii() and text.isdecimal() and len(text) <= 4
    if not is_number or int(text) not in _WIDTHS_PX:
        first, last = _WIDTHS_PX[0], _WIDTHS_PX[-1]
        raise InvalidRequest(f"width: want pixels from {first} to {last}")
    return int(text)


def describe_pictures(document: dict[str, Any]) -> None:
    """Say of each chart in the OpenAPI document that it comes as a picture, too."""
    figure = {"$ref": "#/components/schemas/Figure"}
    picture = {"schema": {"type": "string", "format": "binary"}}
    problem = {"schema": {"$ref": "#/components/schemas/ProblemOut"}}
    for methods in document["paths"].values():
        for operation in methods.values():
            content = operation["responses"].get("200", {}).get("content", {})
            if content.get("application/json", {}).get("schema") == figure:
                content[PNG] = picture
                operation["responses"]["501"] = {
                    "description": "Pictures need what the detail names.",
                    "content": {"application/problem+json": problem},
                }
