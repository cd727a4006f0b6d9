"""What a link to a picture is answered with: the chart's picture, drawn once for all who ask."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.alerts.picture_link import PATH, Picture
from app.api.errors import problem
from app.api.picture_links import picture_of
from app.api.pictures import PNG, Answered

# Each takes a browser a second or two, and whoever has a link may ask as often as they like.
DRAWN_FOR_S = 300.0
_MOST_DRAWN = 32
# A window's late operations may still change it.
_CACHED_FOR_S = 3600


class LinkedPictures:
    """Answers a link that was let in with its chart's picture, drawn further in.

    One that was just drawn is not drawn again, whoever asks.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        now_s: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._now_s = now_s
        self._monotonic = monotonic
        self._drawn: OrderedDict[tuple[str, ...], tuple[asyncio.Task[Answered], float]]
        self._drawn = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not str(scope["path"]).startswith(PATH):
            return await self._app(scope, receive, send)
        picture = picture_of(scope)
        if picture is None:
            refusal = problem(scope, 405, "method_not_allowed", "send GET", {"allow": "GET"})
            return await refusal(scope, receive, send)
        answered = await self._answered(scope, picture)
        if answered.status != 200:
            return await answered.hand_on(send)
        return await self._response(picture, answered.body)(scope, receive, send)

    async def _answered(self, scope: Scope, picture: Picture) -> Answered:
        name = (picture.project, picture.job, picture.window, picture.chart, picture.theme)
        task, until_s = self._drawn.get(name, (None, 0.0))
        if task is None or until_s <= self._monotonic():
            task = asyncio.create_task(self._ask(_of_chart(scope, picture)))
            self._keep(name, task)
        # Shielded: one caller that hangs up must not cancel the others' picture.
        return await asyncio.shield(task)

    async def _ask(self, scope: Scope) -> Answered:
        answered = Answered()
        await self._app(scope, _nothing, answered.take)
        return answered

    def _keep(self, name: tuple[str, ...], task: asyncio.Task[Answered]) -> None:
        def forget_refusal(done: asyncio.Task[Answered]) -> None:
            # It may be there the next time.
            is_good = not done.cancelled() and not done.exception() and done.result().status == 200
            if not is_good and self._drawn.get(name, (None,))[0] is done:
                del self._drawn[name]

        self._drawn[name] = task, self._monotonic() + DRAWN_FOR_S
        self._drawn.move_to_end(name)
        while len(self._drawn) > _MOST_DRAWN:
            self._drawn.popitem(last=False)
        task.add_done_callback(forget_refusal)

    def _response(self, picture: Picture, drawn: bytes) -> Response:
        left_s = max(0, picture.expires_s - int(self._now_s()))
        headers = {
            "cache-control": f"public, max-age={min(left_s, _CACHED_FOR_S)}",
            # It is there to be shown on receivers' pages.
            "cross-origin-resource-policy": "cross-origin",
        }
        return Response(drawn, media_type=PNG, headers=headers)


def _of_chart(scope: Scope, picture: Picture) -> Scope:
    """The request for the chart's picture that the link stands for; nothing else of it counts."""
    path = f"/api/v1/jobs/{picture.job}/windows/{picture.window}/charts/{picture.chart}.png"
    query = f"theme={picture.theme}".encode()
    return {
        **scope,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [pair for pair in scope["headers"] if pair[0] == b"host"],
    }


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
