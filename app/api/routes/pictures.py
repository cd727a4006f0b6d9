"""Charts as PNG: by Accept: image/png, by .png after the path, or by a link in a message.

A linked picture is drawn once for all who request it.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.alerts.picture_links import PICTURES_PATH, Picture
from app.api.http.caching import LookupCache
from app.api.http.errors import USED_PARAMETERS, problem
from app.api.http.picture_links import linked_picture
from app.api.http.request_kinds import KIND_KEY, PNG, chart_of_picture
from app.api.http.work_places import given_once
from app.api.routes.dependencies import Responses, refusals
from app.charts.base.theme import LIGHT, THEMES
from app.errors import InvalidRequest

_WIDTHS_PX = range(320, 2001)
_DEFAULT_WIDTH_PX = 960

Draw = Callable[..., bytes]


class PictureMiddleware:
    """Draws the figure of a chart's route as PNG; passes on other requests.

    `draw` makes a PNG of a figure, a theme and `width_px`.
    """

    def __init__(self, app: ASGIApp, *, draw: Draw) -> None:
        self._app = app
        self._draw = draw

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = chart_of_picture(scope)
        if path is None:
            return await self._app(scope, receive, send)
        width_px = _width_px(scope)
        answered = CapturedResponse()
        await self._app(_without_picture(scope, path), receive, answered.take)
        if answered.status != 200:
            return await answered.hand_on(send)
        theme = THEMES.get(_query(scope).get("theme", [LIGHT.name])[0], LIGHT)
        work = partial(self._draw, json.loads(answered.body), theme, width_px=width_px)
        return await Response(await run_in_threadpool(work), media_type=PNG)(scope, receive, send)


class CapturedResponse:
    """A captured answer of an inner app."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    async def take(self, message: Message) -> None:
        """Capture one message."""
        self._messages.append(message)

    async def hand_on(self, send: Send) -> None:
        """Send all messages."""
        for message in self._messages:
            await send(message)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(self._messages[0]["status"]) if self._messages else 500

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(message.get("body", b"") for message in self._messages)


def _without_picture(scope: Scope, path: str) -> Scope:
    """The same request for the chart's figure."""
    return {
        **scope,
        "path": path,
        "raw_path": path.encode(),
        "headers": [pair for pair in scope["headers"] if pair[0] != b"accept"],
        USED_PARAMETERS: {"width"},
    }


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _width_px(scope: Scope) -> int:
    text = _query(scope).get("width", [str(_DEFAULT_WIDTH_PX)])[0]
    is_number = text.isascii() and text.isdecimal() and len(text) <= 4
    if not is_number or int(text) not in _WIDTHS_PX:
        first, last = _WIDTHS_PX[0], _WIDTHS_PX[-1]
        raise InvalidRequest(f"width: want pixels from {first} to {last}")
    return int(text)


def describe_pictures(document: dict[str, Any]) -> None:
    """Add the PNG answer to each chart of the OpenAPI document."""
    figure = {"$ref": "#/components/schemas/Figure"}
    picture = {"schema": {"type": "string", "format": "binary"}}
    problem = {"schema": {"$ref": "#/components/schemas/ProblemOut"}}
    for methods in document["paths"].values():
        for operation in methods.values():
            content = operation["responses"].get("200", {}).get("content", {})
            if content.get("application/json", {}).get("schema") == figure:
                content[PNG] = picture
                operation["responses"]["501"] = {
                    "description": "Pictures cannot be drawn here; `detail` has the missing "
                    "requirement.",
                    "content": {"application/problem+json": problem},
                }


# Drawing takes a second or two, and a link can be requested at any rate.
PICTURE_TTL_S = 300.0
_MAX_PICTURES = 32
# A window's late operations may still change it.
_BROWSER_TTL_S = 3600


@dataclass(frozen=True, slots=True)
class _PictureRequest:
    """A picture to draw; links to it that expire at different times share the drawing."""

    picture: Picture
    scope: Scope = field(compare=False)


class LinkedPictureMiddleware:
    """Answers an admitted link with its chart's picture, drawn by the inner app and cached."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        now_s: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._now_s = now_s
        self._drawn = LookupCache(
            self._draw,
            fresh_s=PICTURE_TTL_S,
            monotonic=monotonic,
            max_keys=_MAX_PICTURES,
            keep_if=lambda answered: answered.status == 200,  # refusals are not cached
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not str(scope["path"]).startswith(PICTURES_PATH):
            return await self._app(scope, receive, send)
        picture = linked_picture(scope)
        if picture is None:
            refusal = problem(scope, 405, "method_not_allowed", "send GET", {"allow": "GET"})
            return await refusal(scope, receive, send)
        answered = await self._drawn.get(
            _PictureRequest(replace(picture, expires_s=0), _chart_request(scope, picture))
        )
        if answered.status != 200:
            return await answered.hand_on(send)
        left_s = max(0, picture.expires_s - int(self._now_s()))
        headers = {
            "cache-control": f"public, max-age={min(left_s, _BROWSER_TTL_S)}",
            # Receivers' pages embed it.
            "cross-origin-resource-policy": "cross-origin",
        }
        return await Response(answered.body, media_type=PNG, headers=headers)(scope, receive, send)

    async def _draw(self, request: _PictureRequest) -> CapturedResponse:
        answered = CapturedResponse()
        await self._app(request.scope, given_once(b"", _never), answered.take)
        return answered


def _chart_request(scope: Scope, picture: Picture) -> Scope:
    """The request for the chart's picture; nothing else of the link's request counts."""
    path = f"/api/v1/jobs/{picture.job}/windows/{picture.window}/charts/{picture.chart}.png"
    return {
        **scope,
        "path": path,
        "raw_path": path.encode(),
        "query_string": f"theme={picture.theme}".encode(),
        "headers": [pair for pair in scope["headers"] if pair[0] == b"host"],
        KIND_KEY: None,
    }


async def _never() -> Message:
    """The `receive` of a caller that never hangs up: the picture is drawn for all its callers."""
    message: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await message


LINK_PATH = f"{PICTURES_PATH}{{link}}"

# Describes `LinkedPictureMiddleware` in /openapi.json; nothing is routed by it.
described_router = APIRouter(tags=["charts"])

PictureLinkPath = Annotated[
    str, Path(description="Last part of a picture link in an alert message.", max_length=700)
]

_PICTURE: Responses = {
    200: {
        "description": "The picture; may be cached for an hour.",
        "content": {PNG: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@described_router.get(
    LINK_PATH,
    operation_id="get_linked_picture",
    summary="Get the picture of a link in an alert message",
    response_class=Response,
    responses={**_PICTURE, **refusals(404, 409, 421, 429, 500, 501, 503)},
    openapi_extra={"security": []},
)
def get_linked_picture(link: PictureLinkPath) -> None:
    """Takes no token: the link shows this one picture, for seven days.

    Alert messages have such links where pictures can be drawn (`paceline[png]`) and
    `PACELINE_PUBLIC_URL` is an https:// address. Any other link gets 404.
    """
