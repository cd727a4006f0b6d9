"""The HTTP application: its routes, and what surrounds them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute
from typing_extensions import override

from app.api import errors
from app.api.bodies import Bodies, FairShares, InFlight
from app.api.limits import ProjectLimits
from app.api.linked_pictures import LinkedPictures
from app.api.middleware import Guard, Hosts, Refusals, SecurityHeaders
from app.api.openapi import describe
from app.api.pages import Pages, frontend_dir
from app.api.pictures import Pictures
from app.api.reference import reference_page
from app.api.requests import Requests, nouns_of
from app.api.routes import (
    acknowledging,
    alerts,
    arrivals,
    audit,
    charts,
    compare,
    critical_path,
    deliveries,
    endpoint_acts,
    endpoints,
    events,
    fleet,
    fleet_charts,
    headline,
    health,
    hosts,
    jobs,
    metrics,
    one_step,
    ops,
    pictures,
    recording,
    ribbon,
    rules,
    saved_questions,
    scores,
    session,
    settings,
    silences,
    spans,
    steps,
    timeline_charts,
    timelines,
    tokens,
    traces,
    what_if,
    windows,
    workers,
)
from app.api.service import Service
from app.charts.picture import png

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
API = "/api/v1"
ROUTERS = (
    fleet.router,
    fleet_charts.router,
    hosts.router,
    jobs.router,
    recording.router,
    windows.router,
    ribbon.router,
    timelines.router,
    traces.router,
    arrivals.router,
    critical_path.router,
    what_if.router,
    saved_questions.router,
    scores.router,
    steps.router,
    one_step.router,
    workers.router,
    timeline_charts.router,  # before the charts of a window, which take any name
    charts.router,
    headline.router,
    compare.router,
    alerts.router,
    acknowledging.router,
    rules.router,
    silences.router,
    endpoints.router,
    endpoint_acts.router,
    deliveries.router,
    audit.router,
    events.router,
    session.router,
    tokens.router,
    settings.router,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the application takes from outside, and for which names it answers."""

    allowed_hosts: tuple[str, ...]
    max_body_bytes: int
    of_project: ProjectLimits


class Application(FastAPI):
    """FastAPI with the whole description of our API."""

    @override
    def openapi(self) -> dict[str, Any]:
        described = (*ops.described.routes, *pictures.described.routes)
        return describe(self, [*self.routes, *described])


def application(service: Service, limits: Limits, *, close: Callable[[], None]) -> FastAPI:
    """The application over the given parts; `close` is called when it has stopped."""
    pages = Pages(frontend_dir())
    app = Application(
        title="Paceline",
        version=version("paceline"),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(service, pages, close),
        middleware=_middleware(service, limits),
        routes=[*_routes()],
    )
    app.state.service = service
    errors.install(app)
    app.include_router(pages.router())
    app.mount("/static", pages.files())
    app.router.default = pages.or_else(app.router.default)
    return app


@cache
def _routes() -> Sequence[BaseRoute]:
    """What every application answers; reading all its types takes as long as a hundred requests."""
    api, answered = APIRouter(prefix=API), APIRouter()
    for router in ROUTERS:
        api.include_router(router)
    for router in (api, spans.router, health.router, metrics.router, _documents):
        answered.include_router(router)
    return answered.routes


def _middleware(service: Service, limits: Limits) -> list[Middleware]:
    """From the outside in: nothing is read from a caller before it has been let in."""
    allowed = {*LOOPBACK_NAMES, *limits.allowed_hosts}
    routes = (route for router in ROUTERS for route in router.routes)
    paths = [f"{API}{route.path}" for route in routes if isinstance(route, APIRoute)]
    nouns = nouns_of([*paths, ops.PUSH_PATH, pictures.LINK_PATH])
    return [
        Middleware(SecurityHeaders),
        Middleware(Requests, measured=service.measured, nouns=nouns),
        Middleware(Refusals),
        Middleware(Hosts, allowed=allowed),
        Middleware(InFlight),
        Middleware(Guard, access=service.access, links=service.links, limits=limits.of_project),
        Middleware(FairShares),
        Middleware(Bodies, max_bytes=limits.max_body_bytes),
        Middleware(LinkedPictures, now_s=service.now_s),
        Middleware(Pictures, draw=png),
        Middleware(ops.PushOps, service=service),
    ]


# FastAPI remembers every function that it was ever given, so none of them may hold an application.
_documents = APIRouter(include_in_schema=False)


@_documents.get("/openapi.json")
def openapi_document(request: Request) -> Response:
    """What the API can do, for programs."""
    return JSONResponse(request.app.openapi())


@_documents.get("/docs")
def reference(request: Request) -> Response:
    """The same for people."""
    return HTMLResponse(reference_page(request.app.openapi()))


def _lifespan(
    service: Service, pages: Pages, close: Callable[[], None]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        listening = asyncio.create_task(service.hub.run())
        compressing = asyncio.create_task(asyncio.to_thread(pages.compress))
        try:
            yield
        finally:
            service.hub.close()
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
            await compressing
            await service.hub.close_listener()
            await service.access.close()
            await service.writer.close()
            close()

    return lifespan
