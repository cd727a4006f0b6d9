"""The HTTP application: its routes, and what surrounds them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, JSONResponse, Response
from typing_extensions import override

from app.api import errors
from app.api.bodies import Bodies, FairShares, InFlight
from app.api.limits import ProjectLimits
from app.api.middleware import Guard, Hosts, Refusals, SecurityHeaders
from app.api.openapi import describe
from app.api.pages import Pages, frontend_dir
from app.api.reference import reference_page
from app.api.requests import Requests, nouns_of
from app.api.routes import (
    alerts,
    charts,
    critical_path,
    events,
    health,
    jobs,
    metrics,
    ops,
    session,
    steps,
    timelines,
    tokens,
    what_if,
    windows,
)
from app.api.service import Service

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
API = "/api/v1"
ROUTERS = (
    jobs.router,
    windows.router,
    timelines.router,
    critical_path.router,
    what_if.router,
    steps.router,
    charts.router,
    alerts.router,
    events.router,
    session.router,
    tokens.router,
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
        return describe(self, [*self.routes, *ops.described.routes])


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
    )
    app.state.service = service
    errors.install(app)
    app.include_router(_api())
    app.include_router(health.router)
    app.include_router(metrics.router)
    app.include_router(_documents(app))
    app.include_router(pages.router())
    app.mount("/static", pages.files())
    return app


def _api() -> APIRouter:
    api = APIRouter(prefix=API)
    for router in ROUTERS:
        api.include_router(router)
    return api


def _middleware(service: Service, limits: Limits) -> list[Middleware]:
    """From the outside in: nothing is read from a caller before it has been let in."""
    allowed = {*LOOPBACK_NAMES, *limits.allowed_hosts}
    routes = (route for router in ROUTERS for route in router.routes)
    paths = [f"{API}{route.path}" for route in routes if isinstance(route, APIRoute)]
    return [
        Middleware(SecurityHeaders),
        Middleware(Requests, measured=service.measured, nouns=nouns_of([*paths, ops.PUSH_PATH])),
        Middleware(Refusals),
        Middleware(Hosts, allowed=allowed),
        Middleware(InFlight),
        Middleware(Guard, access=service.access, limits=limits.of_project),
        Middleware(FairShares),
        Middleware(Bodies, max_bytes=limits.max_body_bytes),
        Middleware(ops.PushOps, service=service),
    ]


def _documents(app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/openapi.json")
    def openapi_document(_request: Request) -> Response:
        return JSONResponse(app.openapi())

    @router.get("/docs")
    def reference(_request: Request) -> Response:
        return HTMLResponse(reference_page(app.openapi()))

    return router


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
